"""Dialogues with an assistant that remembers. A document is a list of (role, text); values in answers are marked."""
from facts import NOTED, Fact, cap, fix, mark
from stories import ASK as STORY_ASK, ASK_HELD as STORY_HELD, PEOPLE, THINGS, story
from words import ADJ, CITY, COLOUR, DAY, ITEM, PLACE, PROVERB, TOOL, WILD, article, held_out, made_name, person, value

SMALL = """Hello!|Hello! How can I help you?;Hi|Hello! How can I help you?;Good morning.|Good morning! What can I do for you?;How are you?|I am well, thank you. And you?;
Good evening|Good evening! How can I help you?;Thank you.|You are welcome.;Thanks a lot!|You are welcome.;What can you do?|I can remember what you tell me, answer simple questions and tell stories.;
Who are you?|I am Kadence, a small assistant that remembers.;What is your name?|My name is Kadence.;Are you a robot?|I am a small language model.;How old are you?|I am very new.;
It is raining today.|Then it is a good day to stay inside.;The sun is shining.|How nice! Enjoy the day.;I am tired.|Then you should rest a little.;I am hungry.|Then it is time to eat something.;
I am happy today.|I am glad to hear that.;I am sad.|I am sorry to hear that. Do you want to talk about it?;I had a long day.|I hope you can rest now.;I am bored.|Shall I tell you a story?;
It is cold outside.|Then wear a warm coat.;I like music.|Music is a fine thing.;I cannot sleep.|Try to think of something calm.;My train is late.|I hope it comes soon.;Good night.|Good night! Sleep well.;
Goodbye!|Goodbye! See you soon.;See you later.|See you later!;What do you like?|I like to listen to you.;Do you like me?|Yes, I enjoy talking with you.;Can you cook?|No, but I can remember a recipe.;
Can you swim?|No, I have no body.;The soup was too salty.|Next time use less salt.;I lost my keys.|Let us think where you had them last.;I bought a new chair.|I hope it is comfortable.;
The birds are singing.|That must sound lovely.;We went to the market today.|What did you buy?;I painted the fence.|Well done!;It snowed last night.|How beautiful that must look.;
I read a good book.|What was it about?;The coffee is cold.|Perhaps you can warm it up.;My back hurts.|I am sorry. Please take a break.;I will call you later.|All right, until later.;
I am going for a walk.|Enjoy your walk!;The window is open.|Close it if you are cold.;I won a game today.|Congratulations!;I lost the game.|Better luck next time.;Tell me something nice.|You are doing well.;
What day comes after Monday?|Tuesday.;What day comes after Friday?|Saturday.;How many days has a week?|A week has seven days.;How many months has a year?|A year has twelve months.;
What colour is the sky?|The sky is blue.;What colour is grass?|Grass is green.;What colour is snow?|Snow is white.;What do cows eat?|Cows eat grass.;What do bees make?|Bees make honey.;
What is the opposite of big?|Small.;What is the opposite of hot?|Cold.;What is the opposite of up?|Down.;What is the opposite of day?|Night.;What sound does a dog make?|A dog barks.;
What sound does a cat make?|A cat meows.;How many legs has a spider?|A spider has eight legs.;How many legs has a horse?|A horse has four legs.;Where do fish live?|Fish live in water.;
What is ice?|Ice is frozen water.;What comes after seven?|Eight.;What comes after nine?|Ten.;Is the sun hot?|Yes, the sun is very hot.;Can pigs fly?|No, pigs cannot fly.;Can birds fly?|Yes, most birds can fly."""
SMALL = [tuple(x.strip().split("|")) for x in SMALL.replace("\n", "").split(";")]


def join(items):
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


class Dialogue:
    """Grows turn by turn until it is long enough. `prose` gives passages and glosses."""

    def __init__(self, r, prose, evaluating=False):
        self.r, self.prose, self.ev = r, prose, evaluating
        self.turns, self.facts, self.lists, self.people = [], [], [], []

    def say(self, user, assistant):
        self.turns += [("user", user), ("assistant", assistant)]

    def size(self):
        return sum(len(t) for _, t in self.turns) / 3.6 + 14 * len(self.turns)

    # ------------------------------------------------------------------ things told
    def new_fact(self, evaluating=False):
        f = Fact(self.r, evaluating, {g.key for g in self.facts}, self.people)
        if f.who and not f.who.startswith("my ") and f.who not in self.people:
            self.people.append(f.who)
        return f

    def tell(self, n=None):
        r = self.r
        n = n or r.choice((1, 1, 2, 2, 3, 4))
        new = []
        for _ in range(n):
            new.append(self.new_fact())
            self.facts.append(new[-1])
        text = " ".join(f.tell(r) for f in new)
        p = r.random()
        if n == 1 and p < 0.25:
            reply = r.choice(("Noted: {}.", "I will remember that {}.", "Okay, {}.", "So {}.")).format(new[0].short())
        elif n == 1 and new[0].key == (None, "name") and p < 0.8:
            reply = r.choice(("Nice to meet you, {}!", "Hello {}!", "Pleased to meet you, {}.")).format(mark(new[0].v))
        else:
            reply = r.choice(NOTED)
        self.say(text, reply)

    def correct(self):
        r = self.r
        if not self.facts:
            return self.tell()
        f = r.choice(self.facts)
        new = value(r, f.kind)
        text = f.correction(r, new)
        f.v = new
        self.say(text, r.choice(("Okay, {}.", "Thank you. Now I know that {}.", "I see, {}.")).format(f.short()) if r.random() < 0.5 else r.choice(NOTED))

    def tell_list(self):
        r = self.r
        kind, pool = r.choice((("shopping list", ITEM), ("packing list", TOOL), ("list of colours", COLOUR), ("list of cities", CITY), ("list of animals", WILD)))
        if any(k == kind for k, _ in self.lists):
            return self.tell()
        items = r.sample(pool, r.randrange(2, 6))
        self.lists.append((kind, items))
        self.say(r.choice(("My {}: {}.", "On my {} are {}.", "Here is my {}: {}.", "Please write down my {}: {}.")).format(kind, join(items)), r.choice(NOTED))

    def thing_place(self):
        """Where something is; kept as a fact of its own wording."""
        r = self.r
        f = Fact(r, False, {g.key for g in self.facts})
        thing = r.choice((r.choice(TOOL), r.choice(COLOUR) + " " + r.choice(TOOL)))
        f.key, f.v, f.kind, f.verb = ("thing", thing), value(r, "place"), "place", None
        f.tell = lambda r, v=None: r.choice(("The {} is in the {}.", "I put the {} in the {}.", "You will find the {} in the {}.")).format(thing, v or f.v)
        f.ask = lambda r: r.choice(("Where is the {}?", "Where is the {}?", "Where did I put the {}?", "Do you know where the {} is?")).format(thing)
        f.answer = lambda r: f"The {thing} is in the {mark(f.v)}."
        f.short = lambda: f"the {thing} is in the {mark(f.v)}"
        f.correction = lambda r, new: r.choice(("I moved the {} to the {}.", "The {} is now in the {}.", "No, the {} is in the {}.")).format(thing, new)
        f.unknown = lambda r: f"You have not told me where the {thing} is."
        if f.key in {g.key for g in self.facts}:
            return None
        return f

    def tell_places(self):
        new = [f for f in (self.thing_place() for _ in range(self.r.choice((1, 2, 2, 3)))) if f]
        keys = [f.key for f in new]
        new = [f for i, f in enumerate(new) if f.key not in keys[:i]]
        if not new:
            return self.tell()
        self.facts += new
        self.say(" ".join(f.tell(self.r) for f in new), self.r.choice(NOTED))

    # ------------------------------------------------------------------ things asked
    def ask(self, n=None):
        r = self.r
        if not self.facts:
            return self.tell()
        if n is None:
            n = r.choice((1, 1, 2, 3))
        asked = r.sample(self.facts, min(n, len(self.facts)))
        text = " ".join(f.ask(r) for f in asked)
        if len(asked) == 1:
            return self.say(text, asked[0].answer(r))
        self.say(text, cap(join([f.short() for f in asked])) + "." if r.random() < 0.5 else " ".join(cap(f.short()) + "." for f in asked))

    def ask_many(self):
        """Several questions in a row, one a turn: many answers for few tokens."""
        for f in self.r.sample(self.facts, min(len(self.facts), 3)):
            self.say(f.ask(self.r), f.answer(self.r))

    def ask_unknown(self):
        f = self.new_fact()
        known = [g for g in self.facts]
        if self.r.random() < 0.3 and known:  # one known, one not
            g = self.r.choice(known)
            return self.say(g.ask(self.r) + " " + f.ask(self.r), cap(g.short()) + ". " + f.unknown(self.r))
        self.say(f.ask(self.r), f.unknown(self.r))

    def ask_list(self):
        r = self.r
        if not self.lists:
            return self.tell_list()
        i = r.randrange(len(self.lists))
        kind, items = self.lists[i]
        p = r.random()
        if p < 0.45:
            self.say(r.choice(("What is on my {}?", "Read me my {}.", "Tell me my {} again.", "My {}, please.")).format(kind), f"On your {kind}: {mark(join(items))}.")
        elif p < 0.65:
            n = r.randrange(min(len(items), 3))
            self.say(f"What is the {('first', 'second', 'third')[n]} thing on my {kind}?", f"It is {mark(items[n])}.")
        elif p < 0.8:
            self.say(f"How many things are on my {kind}?", f"There are {mark('zero one two three four five six seven eight nine'.split()[len(items)] if len(items) < 10 else len(items))}.")
        elif len(items) < 7:
            pool = {"shopping list": ITEM, "packing list": TOOL, "list of colours": COLOUR, "list of cities": CITY, "list of animals": WILD}[kind]
            new = r.choice(pool)
            if new not in items:
                items.append(new)
                self.say(r.choice(("Add {} to my {}.", "Please put {} on my {}.")).format(new, kind), f"Okay. On your {kind}: {mark(join(items))}.")

    # ------------------------------------------------------------------ everything between
    def small(self):
        self.say(*self.r.choice(SMALL))

    def sums(self):
        r = self.r
        p = r.random()
        if p < 0.5:
            a, b = r.randrange(21), r.randrange(21)
            q, v = r.choice(("{} plus {}", "{} + {}")).format(a, b), a + b
        elif p < 0.8:
            a = r.randrange(21)
            b = r.randrange(a + 1)
            q, v = r.choice(("{} minus {}", "{} - {}")).format(a, b), a - b
        else:
            a, b = r.randrange(11), r.randrange(11)
            q, v = f"{a} times {b}", a * b
        self.say(r.choice(("What is {}?", "How much is {}?", "{}?", "Calculate {}.")).format(q), cap(f"{q} is {mark(v)}."))

    def define(self):
        word, gloss = self.prose.gloss(self.r)
        self.say(self.r.choice(("What is {}?", "What does \"{}\" mean?", "Explain {}.", "What is the meaning of {}?")).format(word), cap(gloss) + ".")

    def echo(self):
        r = self.r
        words = [r.choice((r.choice(TOOL + WILD + COLOUR + ADJ), made_name(r), str(r.randrange(1000)))) for _ in range(r.randrange(1, 6))]
        t = " ".join(words) if r.random() < 0.5 else ", ".join(words)
        self.say(r.choice(("Say: {}", "Repeat after me: {}", "Please say {}", "Write {}", "Repeat: {}")).format(t), mark(t))

    def proverb(self):
        self.say(self.r.choice(("Tell me a proverb.", "Give me some advice.", "Say something wise.", "Another proverb, please.")), self.r.choice(PROVERB))

    def tell_story(self, kind=None, length=None):
        r = self.r
        kind = kind or r.choice(r.choice((WILD, WILD, PEOPLE, THINGS)))
        text, h, f, d = story(r, kind, length)
        generic = r.random() < 0.15
        ask = r.choice(("Tell me a story.", "Please tell me a story.", "A story, please!", "Tell me another story.")) if generic else r.choice(STORY_ASK).format(article(kind))
        self.say(ask, text)
        if r.random() < 0.5:
            self.story_questions(h, f, d, text)

    def read_story(self):
        r = self.r
        text, h, f, d = story(r)
        self.say(r.choice(("Read this: {}", "Here is a text: {}", "I wrote a story: {}", "{}")).format(text), r.choice(("I have read it.", "Thank you, I have read it.", "A nice story!", "Okay.")))
        self.story_questions(h, f, d, text)

    def story_questions(self, h, f, d, text):
        r = self.r
        qs = []
        if h.named and h.name in text:
            qs.append((f"What was the name of the {h.kind}?", f"The name of the {h.kind} was {mark(h.name)}."))
        if f.named and f.name in text:
            qs.append((f"What was the {f.kind} called?", f"The {f.kind} was called {mark(f.name)}."))
        qs.append((f"Where did the {h.kind} live?", f"The {h.kind} lived {mark(d['home'])}."))
        qs.append((f"What did the {h.kind} want?", f"The {h.kind} wanted {mark(d['want'])}."))
        if d["find"]:
            qs.append((f"What did the {h.kind} find?", f"The {h.kind} found {mark(d['find'])}."))
        for q, a in r.sample(qs, min(len(qs), r.choice((1, 2, 2, 3)))):
            if d["want"] in text or "want?" not in q:
                self.say(q, a)

    def passage(self, sentences=None):
        r = self.r
        text = self.prose.passage(r, sentences or r.randrange(1, 5))
        self.say(r.choice(("Read this: {}", "I read this today: {}", "Listen: {}", "Here is a text. {}", "{}")).format(text),
                 r.choice(("I have read it.", "Thank you.", "That is interesting.", "Okay.", "I see.")))

    # ------------------------------------------------------------------ whole documents
    def grow(self, tokens):
        """A document of about so many tokens: told early and late, asked all along."""
        r = self.r
        style = r.random()
        if style < 0.14:  # mostly stories
            while self.size() < tokens:
                r.choice((self.tell_story, self.tell_story, self.tell_story, self.read_story, self.small, self.tell, self.ask))()
            return self
        many = r.random() < 0.6
        acts = [(self.tell, 12), (self.tell_places, 4), (self.ask, 22), (self.ask_many, 10 if many else 4), (self.correct, 3), (self.ask_unknown, 3), (self.tell_list, 2),
                (self.ask_list, 4), (self.small, 5), (self.sums, 3), (self.define, 2), (self.echo, 5), (self.proverb, 1), (self.tell_story, 1.5), (self.read_story, 1.5),
                (self.passage, 1 if tokens < 600 else 3)]
        if tokens <= 300:
            acts = acts[:-3]
        f, w = zip(*acts)
        if r.random() < 0.3:
            self.small()
        if r.random() < 0.7:
            self.tell()
        while self.size() < tokens:
            limit = 4 + tokens // 60
            act = r.choices(f, w)[0]
            if act in (self.tell, self.tell_places) and len(self.facts) > limit:
                act = self.ask
            act()
        return self


def document(r, prose, tokens):
    """A training document: a dialogue, or a piece of prose (a list with the role "text")."""
    if r.random() < 0.06:
        return [("text", prose.passage(r, 40)[: int(tokens * 5)])]
    turns = Dialogue(r, prose).grow(tokens).turns
    if r.random() < 0.05:
        turns = [("system", r.choice(("You are a helpful assistant.", "Be brief.", "You are Kadence.", "Answer politely.")))] + turns
    return turns


def recall(r, prose, distance, count):
    """An evaluation dialogue: one fact with a held-out value, told in a held-out wording, asked for `distance` tokens later, in between
    everything else, also other facts of the same kind. `count` counts the tokens of a list of turns. Gives (turns, value)."""
    d = Dialogue(r, prose)
    for _ in range(r.randrange(0, 3)):
        d.small()
    f = d.new_fact(evaluating=True)
    while f.kind not in ("person", "city", "code", "street", "word", "title", "date", "number", "colour", "food", "job", "place", "car", "sport"):
        f = d.new_fact(evaluating=True)
    d.say(f.tell(r), r.choice(NOTED))
    d.facts.append(f)
    start = len(d.turns)
    other = (d.small, d.small, d.sums, d.define, d.echo, d.proverb, d.distractor, d.distractor, d.distractor, d.tell_story, d.passage, d.other_question)
    while True:
        before = len(d.turns)
        r.choice(other)() if distance > 120 else r.choice((d.small, d.sums, d.distractor))()
        if count(d.turns[start:]) >= distance:
            # The last distractor is dropped where the dialogue is nearer to its goal without it.
            if before > start and count(d.turns[start:]) - distance > distance - count(d.turns[start:before]):
                del d.turns[before:]
            break
    return d.turns + [("user", f.ask(r))], f.v


def _distractor(self):
    f = self.new_fact()
    while self.facts and f.v == self.facts[0].v:
        f = self.new_fact()
    self.facts.append(f)
    self.say(f.tell(self.r), self.r.choice(NOTED))


def _other_question(self):
    """A question about a distractor, never about the first fact."""
    if len(self.facts) < 2:
        return self.distractor()
    f = self.r.choice(self.facts[1:])
    self.say(f.ask(self.r), f.answer(self.r))


Dialogue.distractor, Dialogue.other_question = _distractor, _other_question
