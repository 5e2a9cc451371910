"""A hundred nouns with their plurals, and ten other pairs that define the plural direction."""


def _parse(text: str) -> list[tuple[str, str]]:
    return [(singular, plural) for singular, _, plural in (p.partition(":") for p in text.split())]


DIRECTION = _parse(
    """
    cat:cats dog:dogs bird:birds house:houses boy:boys girl:girls car:cars ball:balls day:days
    friend:friends
    """
)
HUNDRED = _parse(
    """
    animal:animals apple:apples arm:arms baby:babies bag:bags bear:bears bed:beds bee:bees
    berry:berries table:tables block:blocks boat:boats book:books box:boxes brother:brothers
    bug:bugs bush:bushes butterfly:butterflies button:buttons cake:cakes candle:candles
    castle:castles chair:chairs child:children city:cities class:classes cloud:clouds coat:coats
    color:colors window:windows country:countries cow:cows cup:cups dish:dishes doctor:doctors
    doll:dolls door:doors dream:dreams dress:dresses duck:ducks egg:eggs eye:eyes fairy:fairies
    family:families farmer:farmers feather:feathers field:fields finger:fingers flower:flowers
    foot:feet frog:frogs fruit:fruits game:games garden:gardens gift:gifts glass:glasses
    hand:hands hat:hats hill:hills horse:horses insect:insects island:islands key:keys
    kite:kites lady:ladies leaf:leaves leg:legs letter:letters light:lights man:men
    monkey:monkeys mountain:mountains mouse:mice neighbor:neighbors night:nights parent:parents
    party:parties picture:pictures place:places plant:plants puppy:puppies rabbit:rabbits
    river:rivers road:roads rock:rocks room:rooms sheet:sheets ship:ships shoe:shoes
    sister:sisters star:stars stone:stones story:stories student:students teacher:teachers
    tooth:teeth toy:toys tree:trees truck:trucks woman:women
    """
)
