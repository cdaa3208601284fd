"""Small stories from a grammar: a hero, a wish, trouble, help, an end."""
from words import ADJ, COLOUR, FIRST, MONTH, TOOL, WILD, article, made_name

HOME = """in a deep forest|near a quiet lake|on a green hill|in a small village|by the sea|under an old oak tree|in a garden full of roses|
at the edge of a wide field|in a cave behind a waterfall|on a little island|beside a slow river|in a barn with a red roof|
high up in the mountains|in a meadow full of flowers|behind the old mill|in a hollow tree""".replace("\n", "").split("|")
LIKE = """to sing in the morning|to swim in the cold water|to count the stars at night|to help others|to sleep in the warm sun|
to collect shiny stones|to tell long tales|to dance in the rain|to watch the clouds|to bake small cakes|to read by the fire|
to walk along the river|to play with the wind|to look for berries|to climb the tallest trees|to ask questions""".replace("\n", "").split("|")
FIND = """a golden key|an old map|a small silver bell|a letter without a name|a broken lantern|a blue feather|a wooden box|a tiny door in a wall|
a ring in the grass|a red balloon|a strange egg|a shiny coin|a little boat|a lost glove|a book with empty pages|a seed as big as a nut""".replace("\n", "").split("|")
WANT = """to see the sea|to find a friend|to fly like a bird|to learn a song|to reach the top of the mountain|to find the way home|
to taste the sweetest apple|to build a new house|to meet the king|to touch the moon|to cross the great river|to be brave|
to find a warm place for the winter|to win the big race|to grow a garden|to make everyone laugh""".replace("\n", "").split("|")
TROUBLE = """a storm came and the wind blew very hard|the bridge over the river was broken|the path ended at a high wall|
it began to snow and the ground turned white|a loud noise came out of the dark|the night fell and there was no light|
the rain did not stop for three days|a big stone lay in the middle of the road|the river was too wide to cross|
there was nothing left to eat|thick fog hid the way|a thorn bush blocked the path|the boat had a hole and filled with water|
the wind took everything away""".replace("\n", "").split("|")
FEEL = "sad|afraid|tired|cold and hungry|angry|very small|lost|worried|ready to give up|unsure what to do".split("|")
SOLVE = """pulled as hard as they could until the way was free|built a bridge from branches and rope|waited together until the sun came back|
lit a small fire and kept each other warm|shared the last piece of bread|followed the stars all night long|
found a secret path between the rocks|carried the heavy stones away one by one|made a raft out of old wood|
sang so loudly that the fear went away|asked the wind for help, and the wind was kind|dug a tunnel under the wall|
tied their scarves together and climbed up|looked at the map once more and found another way""".replace("\n", "").split("|")
MORAL = """it is good to have a friend|small steps can lead far|being kind is never wrong|the best things can be shared|
even the smallest one can help|home is where your friends are|it is wise to ask for help|courage grows when you use it|
patience brings its own reward|a promise should be kept|everyone is good at something|it pays to listen""".replace("\n", "").split("|")
LAST = """And they lived happily together for many years.|From that day on they met every evening.|That night they slept very well.|
And if you go there today, you may still hear them laugh.|Then everyone went home.|And that is the end of the story.|
They never forgot that day.|Since then nobody in the valley has been lonely.|And the stars shone above them.""".replace("\n", "").split("|")
PEOPLE = """boy|girl|king|queen|farmer|sailor|baker|princess|wizard|old woman|old man|fisherman|knight|giant|miller|painter|robot|shepherd|
teacher|gardener|clown|tailor|witch|prince|pirate|musician""".replace("\n", "").split("|")
THINGS = """tree|star|cloud|boat|train|river|mountain|snowman|moon|teapot|clock|lamp|kite|stone|leaf|lighthouse|violin|umbrella|windmill|
red shoe|tiny house|paper boat|old car|wooden horse|little bell""".replace("\n", "").split("|")


class Hero:
    """Somebody in a story, and how to speak of them."""

    def __init__(self, r, kind):
        self.kind = kind
        thing = kind in THINGS
        female = kind in ("girl", "queen", "princess", "old woman", "witch") or (kind not in PEOPLE and r.random() < 0.5)
        male = kind in ("boy", "king", "old man", "fisherman", "knight", "wizard", "prince")
        self.he, self.him, self.his = (("it", "it", "its") if thing else
                                       ("she", "her", "her") if female and not male else ("he", "him", "his"))
        self.name = r.choice(FIRST) if r.random() < 0.6 else made_name(r)
        self.adj = r.choice(ADJ)
        self.a = article(self.kind if " " in kind and kind.split()[0] in ("old", "little", "tiny", "red") else f"{self.adj} {kind}")
        self.named = r.random() < 0.7

    def first(self):
        return f"{self.a} called {self.name}" if self.named else self.a

    def again(self, r):
        return self.name if self.named and r.random() < 0.6 else "the " + self.kind


def cap(s):
    return s[0].upper() + s[1:]


def story(r, kind=None, length=None):
    """A story about a `kind`, of `length` parts (2 to 6)."""
    kind = kind or r.choice(r.choice((WILD, WILD, PEOPLE, THINGS)))
    length = length or r.choice((3, 4, 4, 5, 6))
    h = Hero(r, kind)
    other = r.choice([w for w in WILD + PEOPLE if w != kind])
    f = Hero(r, other)
    home, again = r.choice(HOME), lambda: h.again(r)
    out = [r.choice((
        f"Once upon a time there was {h.first()} who lived {home}.",
        f"Once there was {h.first()}. {cap(h.he)} lived {home}.",
        f"Long ago, {home}, there lived {h.first()}.",
        f"There was once {h.first()} who lived {home}.",
        f"Far away, {home}, lived {h.first()}.",
        f"{cap(h.first())} lived {home}."))]
    like, want, find = r.choice(LIKE), r.choice(WANT), r.choice(FIND)
    out.append(r.choice((
        f"{cap(again())} liked {like}, but most of all {h.he} wanted {want}.",
        f"Every day {again()} liked {like}. But {h.he} had one wish: {h.he} wanted {want}.",
        f"{cap(again())} had many dreams. The biggest one was {want}.",
        f"More than anything, {again()} wanted {want}.")))
    if length > 4 or (length > 3 and r.random() < 0.5):
        out.append(r.choice((
            f"One morning in {r.choice(MONTH)}, {again()} found {find}.",
            f"One day {h.he} found {find} and wondered who had lost it.",
            f"On a cold evening {again()} came upon {find}.",
            f"Under {article(r.choice(COLOUR))} leaf {h.he} saw {find}.")))
    out.append(r.choice((
        f"So {h.he} packed {article(r.choice(TOOL))} and set out early in the morning.",
        f"One day {again()} said, \"Today I will try.\" And off {h.he} went.",
        f"One sunny morning {h.he} left home and walked for a long time.",
        f"So {again()} started on a long journey.")))
    feel, trouble, solve = r.choice(FEEL), r.choice(TROUBLE), r.choice(SOLVE)
    if length > 2:
        out.append(r.choice((
            f"But then {trouble}. {cap(again())} was {feel}.",
            f"Then {trouble}, and {again()} was {feel}.",
            f"On the way {trouble}. Poor {h.name if h.named else h.kind} was {feel}.",
            f"After a while {trouble}. What should {h.he} do?")))
        fr = f.first()
        out.append(r.choice((
            f"Just then {fr} came along. \"Why do you look so {feel.split(' ')[-1] if ' ' not in feel else 'sad'}?\" asked the {f.kind}.",
            f"Soon {h.he} met {fr}. \"Can I help you?\" said the {f.kind}.",
            f"There {h.he} saw {fr}. \"Do not be afraid,\" said the {f.kind}. \"I know what to do.\"",
            f"Then {fr} sat down next to {h.him} and listened.")))
    if length > 3:
        out.append(r.choice((
            f"\"I want {want},\" said {again()}. \"Then come with me,\" said the {f.kind}.",
            f"{cap(again())} told {f.him} everything, and the {f.kind} smiled.",
            f"\"Nobody can do this alone,\" said the {f.kind}. \"But we are two.\"",
            f"The {f.kind} thought for a long time. \"I have an idea,\" {f.he} said.")))
    if length > 2:
        out.append(r.choice((f"Together they {solve}.", f"So the two of them {solve}.", f"The {h.kind} and the {f.kind} {solve}.")))
    if length > 4:
        out.append(r.choice((
            f"In the end {again()} got {h.his} wish, and {h.he} was very happy.",
            f"At last {h.his} dream came true.",
            f"When the sun came up, {again()} saw that {h.his} wish had come true.")))
    out.append(r.choice((
        f"{cap(again())} learned that {r.choice(MORAL)}.", f"That day {again()} learned that {r.choice(MORAL)}.", r.choice(LAST),
        f"{r.choice(LAST)}", f"Now {again()} knew that {r.choice(MORAL)}. {r.choice(LAST)}")))
    return " ".join(out), h, f, dict(want=want, find=find if any(find in o for o in out) else None, home=home)


ASK = ("Tell me a story about {}.|Tell me a story about {}.|Tell me a story about {}.|Please tell me a story about {}.|Can you tell me a story about {}?|"
       "I would like to hear a story about {}.|A story about {}, please.|Make up a short story about {}.|Do you know a story about {}?|"
       "Write a little story about {}.|Tell a story about {}!|tell me a story about {}").split("|")
ASK_HELD = ("Would you tell me a story about {}, please?", "Let me hear a tale about {}.", "I want a bedtime story about {}.")
