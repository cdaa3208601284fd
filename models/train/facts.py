"""Facts: how they are told, asked for and answered, each in several wordings. Some wordings are kept for the evaluation."""
from words import RELATION, person, value

# What can be known of somebody: noun phrase, kind of value.
ATTR = [("name", "person"), ("favourite colour", "colour"), ("favourite food", "food"), ("favourite drink", "drink"), ("favourite animal", "wild"),
        ("favourite sport", "sport"), ("favourite number", "number"), ("phone number", "code"), ("birthday", "date"), ("age", "age"),
        ("address", "street"), ("job", "job"), ("home town", "city"), ("car", "car"), ("favourite book", "title"), ("favourite song", "title"),
        ("first language", "language"), ("favourite month", "month"), ("favourite city", "city"), ("middle name", "person")]
MINE = ATTR + [("locker code", "code"), ("password", "word"), ("PIN", "code"), ("room number", "number"), ("flight number", "code"), ("seat number", "number"),
               ("secret word", "word"), ("lucky number", "number"), ("train time", "clock"), ("bus number", "number"), ("meeting day", "day"),
               ("order number", "code"), ("hotel", "title"), ("instrument", "instrument"), ("boat's name", "person"), ("cat's name", "person"),
               ("dog's name", "person"), ("best friend's name", "person"), ("team", "word"), ("wedding day", "date"), ("shoe size", "age"), ("parking spot", "code")]
# What somebody does: told, asked, answered; V is the value, S the subject, {s} is "I" or "my sister" or "Tom".
VERB = [("live{s} in V", "Where do{es} S live?", "live{s} in V", "city"),
        ("work{s} as a V", "What does S work as?", "work{s} as a V", "job"),
        ("play{s} the V", "Which instrument do{es} S play?", "play{s} the V", "instrument"),
        ("speak{s} V", "Which language do{es} S speak?", "speak{s} V", "language"),
        ("drive{s} a V", "What do{es} S drive?", "drive{s} a V", "car"),
        ("collect{s} V stamps", "Which stamps do{es} S collect?", "collect{s} V stamps", "colour"),
        ("like{s} V most", "What do{es} S like most?", "like{s} V most", "food"),
        ("come{s} from V", "Where do{es} S come from?", "come{s} from V", "city"),
        ("arrive{s} at V", "When do{es} S arrive?", "arrive{s} at V", "clock"),
        ("leave{s} on V", "When do{es} S leave?", "leave{s} on V", "day"),
        ("train{s} for V", "What do{es} S train for?", "train{s} for V", "sport"),
        ("need{s} V litres of paint", "How many litres of paint do{es} S need?", "need{s} V litres of paint", "number")]

TELL = """{P} {a} is {v}.|{P} {a} is {v}.|{P} {a} is {v}.|{P} {a} is {v}.|By the way, {p} {a} is {v}.|Please remember that {p} {a} is {v}.|You should know that {p} {a} is {v}.|
Remember this: {p} {a} is {v}.|{v} is {p} {a}.|Note that {p} {a} is {v}.|{P} {a}: {v}.|I want you to know that {p} {a} is {v}.|Did I tell you that {p} {a} is {v}?|
For later: {p} {a} is {v}.|Just so you know, {p} {a} is {v}.""".replace("\n", "").split("|")
TELL_HELD = ("Keep in mind that {p} {a} is {v}.", "One more thing: {p} {a} is {v}.", "Don't forget, {p} {a} is {v}.")
ASK = """What is {p} {a}?|What is {p} {a}?|What is {p} {a}?|What's {p} {a}?|Do you remember {p} {a}?|Can you tell me {p} {a}?|Tell me {p} {a}.|What was {p} {a}?|
I forgot {p} {a}. What is it?|Do you know {p} {a}?|And {p} {a}?|{P} {a}?|Please tell me {p} {a} again.|what is {p} {a}""".replace("\n", "").split("|")
# More wordings, put together from parts.
OPENING = ("", "", "", "", "", "So, ", "Now, ", "Sorry, ", "Please, ", "Quick question: ", "Kadence, ", "Hey, ", "Again: ", "Tell me, ", "By the way, ", "Well, ", "One question: ")
REQUEST = """what is {p} {a}|what was {p} {a}|what {p} {a} is|can you tell me {p} {a}|could you tell me {p} {a}|can you repeat {p} {a}|could you repeat {p} {a}|
could you give me {p} {a}|will you name {p} {a}|would you tell me {p} {a}|do you recall {p} {a}|do you still know {p} {a}|can you remember {p} {a}|
say {p} {a}|name {p} {a}|give me {p} {a}|repeat {p} {a}|recall {p} {a}|I need {p} {a}|I would like to know {p} {a}|help me remember {p} {a}|
let me hear {p} {a}|what did I tell you about {p} {a}|what do you know about {p} {a}|have you kept {p} {a}|I want to know {p} {a}|
what did you note as {p} {a}|what did I call {p} {a}|which one is {p} {a}|do you have {p} {a}|I can't remember {p} {a}|could you look up {p} {a}|
what did I mention as {p} {a}|remind me what {p} {a} is|what have I told you {p} {a} is""".replace("\n", "").split("|")
CLOSING = ("?", "?", "?", ".", ".", "", ", please.", ", please?", " again?", " again.", " now?", " for me.", " one more time.", ", thank you.")
BEFORE = """Listen: |Here is something: |I should mention that |It may help to know that |Also, |Well, |Remember, |A fact: |Oh, and |Let me tell you that |
As you may know, |It is true that |Write down that |Never forget that |Something else: |To be clear, |You may want to know that |I just learned that |Save this: |
Please note: |Today I can tell you that |Think of this: |Believe it or not, """.replace("\n", "").split("|")
ASK_HELD = ("Remind me of {p} {a}, please.", "Could you say {p} {a} once more?", "What did I say {p} {a} was?")
ANSWER = ("{Y} {a} is {V}.",) * 9 + ("It is {V}.",)
NOTED = """Okay.|Noted.|I will remember that.|Thank you, I will keep that in mind.|Good to know.|All right.|Got it.|Thanks for telling me.|Understood.""".replace("\n", "").split("|")
UNKNOWN = ("You have not told me {y} {a}.",) * 5 + ("I don't know {y} {a}. You have not told me.",)


def cap(s):
    return s[0].upper() + s[1:]


def mark(v):
    """Marks a value in an answer: its tokens count more in training."""
    return f"\x01{v}\x02"


class Fact:
    """One thing told: who, what, value. `key` says which facts are about the same thing."""

    def __init__(self, r, evaluating=False, taken=(), people=()):
        self.ev = evaluating
        for _ in range(200):
            self._draw(r, people)
            if self.key not in taken:
                break
        self.v = value(r, self.kind, evaluating)

    def _draw(self, r, people):
        p = r.random()
        self.verb = None
        if p < 0.40:
            self.who, (self.attr, self.kind) = None, r.choice(MINE)
        elif p < 0.65:
            self.who, (self.attr, self.kind) = "my " + r.choice(RELATION), r.choice(ATTR)
        elif p < 0.82:
            self.who = r.choice(people) if people and r.random() < 0.7 else person(r).split()[0]
            self.attr, self.kind = r.choice(ATTR[1:])
        else:
            self.who = r.choice((None, "my " + r.choice(RELATION), r.choice(people) if people else "my " + r.choice(RELATION)))
            self.verb = r.choice(VERB)
            self.attr, self.kind = self.verb[1], self.verb[3]
        self.key = (self.who, self.attr)

    def _names(self):
        """The possessives that the user says and that the assistant says."""
        if self.who is None:
            return "my", "your"
        if self.who.startswith("my "):
            return self.who + "'s", "your" + self.who[2:] + "'s"
        return self.who + "'s", self.who + "'s"

    def _verb(self, form, mine):
        s = "I" if self.who is None else self.who
        if not mine:
            s = "you" if self.who is None else "your" + s[2:] if s.startswith("my ") else s
        third = "" if self.who is None else "s"
        return s, form.replace("{s}", third)

    def tell(self, r, v=None):
        v = v or self.v
        if self.verb:
            s, f = self._verb(self.verb[0], True)
            head = "" if r.random() < 0.6 else r.choice(["By the way, ", "Please remember that ", "You should know that ", "Just so you know, "] + BEFORE)
            if self.ev:
                head = r.choice(("Keep in mind that ", "One more thing: ", "Don't forget, "))
            t = f"{head}{s} {f.replace('V', v)}."
            return fix(t if head else cap(t))
        p = self._names()[0]
        if not self.ev and r.random() < 0.3:
            return f"{r.choice(BEFORE)}{p} {self.attr} is {v}."
        return cap(r.choice(TELL_HELD if self.ev else TELL).format(P=cap(p), p=p, a=self.attr, v=v))

    def ask(self, r):
        if self.verb:
            s, q = self._verb(self.verb[1], True)
            return q.replace("{es}", "" if self.who is None else "es").replace("does S", "do S" if self.who is None else "does S").replace("S", s, 1)
        p = self._names()[0]
        if not self.ev and r.random() < 0.6:
            return cap((r.choice(OPENING) + r.choice(REQUEST) + r.choice(CLOSING)).format(p=p, a=self.attr))
        return r.choice(ASK_HELD if self.ev else ASK).format(P=cap(p), p=p, a=self.attr)

    def answer(self, r):
        if self.verb:
            s, f = self._verb(self.verb[2], False)
            return fix(cap(f"{s} {f}.").replace("V", mark(self.v), 1))
        y = self._names()[1]
        return r.choice(ANSWER).format(Y=cap(y), a=self.attr, V=mark(self.v))

    def short(self):
        """What the fact is, with its value, for an answer that names several."""
        if self.verb:
            s, f = self._verb(self.verb[2], False)
            return fix(f"{s} {f}".replace("V", mark(self.v), 1))
        return f"{self._names()[1]} {self.attr} is {mark(self.v)}"

    def unknown(self, r):
        if self.verb:
            return "You have not told me that."
        return r.choice(UNKNOWN).format(y=self._names()[1], a=self.attr)

    def correction(self, r, new):
        if self.verb:
            s, f = self._verb(self.verb[0], True)
            return r.choice(("No, ", "Sorry, ", "I was wrong: ", "Correction: ", "That has changed: ")) + fix(f"{s} {f.replace('V', new)} now.")
        p = self._names()[0]
        return r.choice(("No, {p} {a} is {v}.", "Sorry, {p} {a} is {v}, not {o}.", "I was wrong. {P} {a} is {v}.", "Correction: {p} {a} is {v}.",
                         "{P} {a} has changed. It is {v} now.", "Wait, {p} {a} is not {o}, it is {v}.")).format(P=cap(p), p=p, a=self.attr, v=new, o=self.v)


def fix(t):
    """"a engineer" becomes "an engineer", also where the noun is marked."""
    for vowel in "aeiouAEIO":
        t = t.replace(" a " + vowel, " an " + vowel).replace(" a \x01" + vowel, " an \x01" + vowel)
    return t
