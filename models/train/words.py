"""Words that the generated dialogues and stories are made of."""
import random
import zlib

FIRST = """Anna Ben Clara David Emma Felix Grace Henry Ida Jonas Kate Liam Mia Noah Olga Peter Rosa Sam Tara Victor Wendy Yara Zoe
Adam Alice Arthur Astrid Bella Boris Carl Carmen Cecil Daisy Dora Edgar Elena Eric Esther Fiona Frank Fred George Greta Hana Harry
Hugo Ines Ivan Jack Jane Julia Karim Lara Leo Lena Louis Lucy Marco Maria Marta Max Nadia Nina Omar Oscar Paul Petra Priya Quentin
Rita Robert Ruth Sara Simon Sofia Stefan Susan Tom Uma Ursula Vera Walter Will Xenia Yusuf Zora Amir Aisha Bruno Chen Dmitri Fatima
Gita Hiro Ingrid Jorge Kofi Luca Mei Nils Odette Pablo Rafael Sigrid Tomas Viola Yuki""".split()
SURNAME = """Adler Baker Berg Carter Cole Dixon Fischer Ford Grant Hall Hansen Hill Jensen Keller Kim Lang Larsen Lopez Marsh Meyer
Moore Nolan Novak Okafor Olsen Park Parker Patel Quinn Reed Rossi Sato Silva Singh Stone Tanaka Turner Vogel Walsh Weber West Wolf
Wood Young Zhang""".split()
ON = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh sk st t th tr v w y z".split()
MID = "a e i o u a e i o ai ea ou ia".split()
END = "n r l s m x th nd rk ll na ra la do ko mi ta ven dor mar lin wick ton ford ris sk bo".split()
CITY = """Paris London Berlin Madrid Rome Vienna Oslo Stockholm Helsinki Lisbon Dublin Prague Warsaw Athens Cairo Nairobi Lagos Tokyo
Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Sydney Melbourne Toronto Montreal Boston Chicago Denver Seattle Austin Dallas Miami
Lima Bogota Santiago Havana Bergen Tromso Malmo Aarhus Hamburg Munich Cologne Leipzig Zurich Geneva Basel Milan Turin Naples Venice
Florence Porto Seville Valencia Lyon Nice Bordeaux Ghent Bruges Leeds York Bristol Glasgow Edinburgh Cardiff Cork Galway Riga Tallinn
Vilnius Krakow Gdansk Budapest Zagreb Split Sofia Istanbul Ankara Tbilisi Baku Hanoi Manila Jakarta Perth Auckland Quito Cusco""".split()
COLOUR = """red blue green yellow orange purple pink brown black white grey silver gold turquoise violet crimson beige indigo teal
olive maroon lilac navy scarlet amber ivory""".split()
FOOD = """pizza|pasta|rice|soup|bread|cheese|salad|pancakes|dumplings|curry|sushi|noodles|apple pie|fish and chips|lentil stew|porridge|
roast potatoes|tomato soup|mushroom risotto|chicken soup|waffles|omelette|goulash|paella|ramen|falafel|lasagne|chocolate cake|
strawberries|cherries|grilled fish|vegetable stew|baked beans|pea soup|plum cake|onion tart|blueberry muffins|cinnamon rolls"""
FOOD = [x.strip() for x in FOOD.replace("\n", "").split("|")]
DRINK = "tea|coffee|milk|water|lemonade|apple juice|orange juice|hot chocolate|ginger tea|mint tea|green tea|tomato juice|cocoa|cold milk|iced tea|grape juice".split("|")
JOB = """teacher doctor nurse baker farmer driver pilot painter singer writer carpenter plumber lawyer chef gardener engineer dentist
librarian musician tailor sailor judge actor dancer firefighter photographer electrician translator waiter scientist architect
butcher florist journalist mechanic miner potter shepherd surgeon weaver banker barber biologist clerk coach""".split()
ANIMAL = """dog cat rabbit hamster parrot horse goat turtle goldfish snake mouse pony duck goose canary lizard ferret sheep pig hen
donkey frog""".split()
WILD = """fox bear wolf owl hedgehog squirrel deer otter badger beaver crow eagle whale dolphin lion tiger elephant monkey penguin
seal robin swan mole bat bee ant spider snail butterfly rabbit mouse frog duck cat dog horse goat sheep pig hen goose donkey turtle
hare sparrow raven heron stork crab fish camel zebra giraffe panda koala dragon kitten puppy pony lamb""".split()
SPORT = """football|tennis|chess|swimming|running|cycling|hockey|golf|rugby|skating|skiing|rowing|climbing|judo|basketball|volleyball|
table tennis|sailing|archery|fencing|karate|surfing|badminton|cricket""".replace("\n", "").split("|")
TOOL = """hammer|lamp|umbrella|notebook|guitar|camera|bicycle|suitcase|violin|map|clock|blanket|ladder|telescope|kettle|mirror|basket|
lantern|scarf|jacket|wallet|passport|piano|drum|flute|compass|rope|saw|shovel|bucket|candle|vase|teapot|rug|helmet|tent|kite|
sledge|backpack|coat|ring|watch|necklace|letter|book|box|bottle|key|ticket|phone|laptop|radio""".replace("\n", "").split("|")
PLACE = """drawer|kitchen|garage|attic|cellar|garden shed|bathroom|bedroom|living room|office|car|cupboard|hallway|closet|top shelf|
bottom shelf|desk|fridge|wardrobe|blue box|red box|wooden chest|green bag|basement|laundry room|bookcase|toolbox|pantry|old barn|
mailbox|big suitcase|glass cabinet|boat house|white van""".replace("\n", "").split("|")
ITEM = """eggs|bread|milk|butter|cheese|apples|pears|rice|flour|sugar|salt|pepper|tea|coffee|honey|onions|carrots|potatoes|tomatoes|
beans|soap|candles|matches|paper|nails|batteries|stamps|flowers|lemons|garlic|yogurt|oats|jam|olives|plums|grapes|nuts|pasta|oil|
vinegar|spinach|peas|cherries|mushrooms|paint|string|glue|tape|pencils|socks""".replace("\n", "").split("|")
MONTH = "January February March April May June July August September October November December".split()
DAY = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
INSTRUMENT = "piano guitar violin drum flute cello harp trumpet clarinet organ banjo saxophone".split()
LANGUAGE = """French German Spanish Italian Polish Norwegian Swedish Danish Dutch Greek Turkish Arabic Hindi Chinese Japanese Korean
Russian Czech Finnish Hungarian Portuguese Welsh Irish Latin""".split()
CAR = "Volvo|Toyota|Ford|Fiat|Skoda|Honda|Mazda|Opel|Seat|Tesla|Peugeot|old van|small truck|red tractor|Renault|Jeep|Kia|Nissan".split("|")
RELATION = """sister brother mother father aunt uncle cousin friend boss neighbour teacher doctor dentist grandmother grandfather son
daughter wife husband colleague landlord coach nephew niece roommate lawyer""".split()
ADJ = "small big old young brave clever quiet lazy kind hungry happy lonely curious proud shy gentle grumpy tiny cheerful little".split()
PROVERB = """A stitch in time saves nine.|The early bird catches the worm.|Still waters run deep.|Many hands make light work.|
Practice makes perfect.|A friend in need is a friend indeed.|Better late than never.|Actions speak louder than words.|
All that glitters is not gold.|Don't count your chickens before they hatch.|Every cloud has a silver lining.|Haste makes waste.|
Honesty is the best policy.|Look before you leap.|No smoke without fire.|Rome was not built in a day.|Slow and steady wins the race.|
The apple does not fall far from the tree.|Two heads are better than one.|When in Rome, do as the Romans do.|
Where there is a will, there is a way.|You reap what you sow.|An apple a day keeps the doctor away.|Birds of a feather flock together.|
Curiosity killed the cat.|Do not put all your eggs in one basket.|Time and tide wait for no man.|Too many cooks spoil the broth."""
PROVERB = [x.strip() for x in PROVERB.replace("\n", "").split("|")]


def held_out(value):
    """One value in twenty never appears in training: it is kept for the evaluation."""
    return zlib.crc32(value.lower().encode()) % 20 == 0


def made_name(r):
    """A name that no list has: two or three syllables."""
    return ("".join(r.choice(ON) + r.choice(MID) for _ in range(r.choice((1, 1, 2)))) + r.choice(END)).capitalize()


def person(r):
    p = r.random()
    if p < 0.45:
        return r.choice(FIRST)
    return made_name(r) if p < 0.85 else r.choice(FIRST) + " " + (r.choice(SURNAME) if r.random() < 0.6 else made_name(r))


def city(r):
    return r.choice(CITY) if r.random() < 0.7 else made_name(r)


def number(r):
    return str(r.randrange(10 ** r.choice((1, 2, 2, 3, 3, 4, 4))))


def code(r):
    k = r.random()
    if k < 0.5:
        return str(r.randrange(1000, 10000))
    if k < 0.75:
        return r.choice("ABCDEFGHJKLMNPRSTUVWXYZ") + str(r.randrange(10, 1000))
    return f"{r.randrange(100, 1000)}-{r.randrange(100, 1000)}"


def clock(r):
    return r.choice((f"{r.randrange(1, 13)} o'clock", f"{r.randrange(6, 23)}:{r.choice(('00', '15', '30', '45', '10', '20', '40', '50'))}"))


def date(r):
    return r.choice((f"{r.choice(MONTH)} {r.randrange(1, 29)}", f"the {r.randrange(4, 21)}th of {r.choice(MONTH)}"))


def word(r):
    """A secret word: a plain noun or a made one."""
    return r.choice(TOOL + WILD + COLOUR) if r.random() < 0.4 else made_name(r).lower()


VALUE = {
    "person": person, "city": city, "number": number, "code": code, "clock": clock, "date": date, "word": word,
    "age": lambda r: str(r.randrange(3, 96)), "colour": lambda r: r.choice(COLOUR), "food": lambda r: r.choice(FOOD),
    "drink": lambda r: r.choice(DRINK), "job": lambda r: r.choice(JOB), "animal": lambda r: r.choice(ANIMAL),
    "wild": lambda r: r.choice(WILD), "sport": lambda r: r.choice(SPORT), "day": lambda r: r.choice(DAY),
    "instrument": lambda r: r.choice(INSTRUMENT), "language": lambda r: r.choice(LANGUAGE), "car": lambda r: r.choice(CAR),
    "place": lambda r: r.choice(PLACE), "month": lambda r: r.choice(MONTH),
    "street": lambda r: f"{r.randrange(1, 200)} {r.choice((made_name(r), r.choice(SURNAME), r.choice(COLOUR).capitalize()))} {r.choice(('Street', 'Road', 'Lane', 'Square'))}",
    "title": lambda r: f"The {r.choice(COLOUR + ADJ).capitalize()} {r.choice(WILD + TOOL).capitalize()}",
}
# Small closed sets have no held-out values; open ones do.
OPEN = {"person", "city", "code", "street", "word", "title", "date", "number"}


def value(r, kind, evaluating=False):
    """A value of a kind; in evaluation one that training never shows, where the kind is open."""
    for _ in range(2000):
        v = VALUE[kind](r)
        if kind not in OPEN or held_out(v) == evaluating:
            return v
    return v


def article(noun):
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def rng(*seed):
    return random.Random(":".join(map(str, seed)))
