"""Tables of an item and its answer, from common knowledge, for few-shot prompts.

In :data:`CAPITALS` and :data:`ANTONYMS` no two items share an answer, so that examples show the form of a question and
not its answer. :data:`KINDS` and :data:`FEELINGS` have two answers, equally often, so that examples also
tell what stands for which.
"""

from icllab.core.errors import require_integer


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [tuple(pair.strip().split(" - ")) for pair in text.replace("\n", " ").split(",")]
    return tuple((item.strip(), answer.strip()) for item, answer in pairs)


def _classes(**words: str) -> tuple[tuple[str, str], ...]:
    return tuple((word, name) for name, text in words.items() for word in text.split())


CAPITALS = _pairs("""
    France - Paris, Germany - Berlin, Spain - Madrid, Italy - Rome, Portugal - Lisbon, Greece - Athens, Poland -
    Warsaw, Austria - Vienna, Hungary - Budapest, Norway - Oslo, Sweden - Stockholm, Finland - Helsinki, Denmark -
    Copenhagen, Ireland - Dublin, Belgium - Brussels, Switzerland - Bern, Russia - Moscow, Ukraine - Kyiv, Romania
    - Bucharest, Bulgaria - Sofia, Serbia - Belgrade, Croatia - Zagreb, Iceland - Reykjavik, Estonia - Tallinn,
    Latvia - Riga, Lithuania - Vilnius, Turkey - Ankara, Egypt - Cairo, Morocco - Rabat, Algeria - Algiers, Tunisia
    - Tunis, Kenya - Nairobi, Ethiopia - Addis Ababa, Nigeria - Abuja, Ghana - Accra, Senegal - Dakar, Uganda -
    Kampala, Zimbabwe - Harare, Zambia - Lusaka, Angola - Luanda, Sudan - Khartoum, Somalia - Mogadishu, Iran -
    Tehran, Iraq - Baghdad, Syria - Damascus, Lebanon - Beirut, Jordan - Amman, Israel - Jerusalem, Qatar - Doha,
    India - New Delhi, Pakistan - Islamabad, Nepal - Kathmandu, Bangladesh - Dhaka, Afghanistan - Kabul, China -
    Beijing, Japan - Tokyo, Thailand - Bangkok, Vietnam - Hanoi, Indonesia - Jakarta, Malaysia - Kuala Lumpur,
    Philippines - Manila, Mongolia - Ulaanbaatar, Australia - Canberra, Canada - Ottawa, Cuba - Havana, Jamaica -
    Kingston, Peru - Lima, Chile - Santiago, Colombia - Bogota, Ecuador - Quito, Venezuela - Caracas, Argentina -
    Buenos Aires
""")
"""72 countries and their capitals."""

ANTONYMS = _pairs("""
    hot - cold, big - small, fast - slow, high - low, long - short, old - young, rich - poor, strong - weak, happy
    - sad, light - dark, wet - dry, hard - soft, full - empty, open - closed, early - late, near - far, deep -
    shallow, thick - thin, wide - narrow, loud - quiet, clean - dirty, good - bad, right - wrong, true - false, up
    - down, left - right, in - out, on - off, above - below, before - after, first - last, north - south, east -
    west, day - night, summer - winter, love - hate, win - lose, buy - sell, push - pull, start - finish, begin -
    end, rise - fall, enter - exit, accept - reject, remember - forget, arrive - depart, increase - decrease, war -
    peace, friend - enemy, success - failure, question - answer, life - death, always - never, everything -
    nothing, inside - outside, more - less, many - few, brave - cowardly, polite - rude, safe - dangerous, simple -
    complex, cheap - expensive, alive - dead, tight - loose, sharp - blunt, smooth - rough, public - private,
    guilty - innocent, internal - external, positive - negative, maximum - minimum, ancient - modern
""")
"""Words and their opposites."""

KINDS = _classes(
    animal="""
    dog cat horse cow sheep goat pig lion tiger bear wolf fox deer rabbit mouse elephant giraffe monkey camel eagle
    owl duck goose crow frog snake shark whale
    """,
    plant="""
    oak pine maple birch willow cedar rose tulip daisy lily orchid ivy fern moss cactus bamboo wheat corn rice
    barley cabbage lettuce carrot onion potato tomato clover sunflower
    """,
)
"""28 animals and 28 plants."""

FEELINGS = _classes(
    positive="""
    wonderful excellent great delightful beautiful amazing fantastic lovely superb brilliant charming pleasant
    joyful happy perfect enjoyable splendid marvelous cheerful impressive kind generous friendly exciting graceful
    honest helpful successful
    """,
    negative="""
    terrible awful horrible bad disgusting ugly dreadful nasty boring painful annoying miserable sad poor cruel
    rude hateful gloomy disappointing worthless angry selfish hostile dull clumsy dishonest useless tragic
    """,
)
"""28 words of praise and 28 of blame."""


def sums(most: int = 9) -> tuple[tuple[str, str], ...]:
    """All sums a+b with a and b from 0 to ``most``, which is at least 1, and their values."""
    require_integer("most", most)
    return tuple((f"{a}+{b}", str(a + b)) for a in range(most + 1) for b in range(most + 1))
