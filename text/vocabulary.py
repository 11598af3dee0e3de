"""Short forms of words, and what English reads for them: abbreviations, books, months, days.

The segmenter and the English front end share them. Units are in ``text/units.py``.
"""

from __future__ import annotations


def words_of(text: str) -> frozenset[str]:
    """Return the set of the words in ``text``, which are separated by spaces."""
    return frozenset(text.split())


def table(lines: str) -> dict[str, str]:
    """Return the table in ``lines``, each of which has a word and its reading."""
    pairs = (line.split(None, 1) for line in lines.strip().splitlines())
    return {word: reading.strip() for word, reading in pairs}


#: Abbreviations in any case, with or without a dot. None of them is also a word.
ABBREVIATED = table(
    """
    mr mister
    mrs missus
    ms miz
    dr doctor
    prof professor
    jr junior
    sr senior
    st street
    rd road
    blvd boulevard
    hwy highway
    etc et cetera
    vs versus
    approx approximately
    appt appointment
    dept department
    govt government
    inc incorporated
    incl including
    excl excluding
    misc miscellaneous
    ltd limited
    corp corporation
    bros brothers
    mph miles per hour
    kph kilometers per hour
    rpm revolutions per minute
    km kilometers
    kg kilograms
    cm centimeters
    ft feet
    lbs pounds
    hr hour
    hrs hours
    mins minutes
    secs seconds
    yr year
    yrs years
    tsp teaspoon
    tbsp tablespoon
    acct account
    avg average
    qty quantity
    bldg building
    rte route
    pkwy parkway
    expy expressway
    fwy freeway
    tpke turnpike
    attn attention
    pkg package
    pkgs packages
    doz dozen
    msg message
    msgs messages
    mgr manager
    cllr councillor
    ea each
    """
)
#: Of those, acronyms if in capitals without a number: the HR people, the FT.
MEASURES_TOO = words_of("ft hr yr km cm kg mph kph rpm")
#: Acronyms if in capitals without a dot, unless the whole text is in capitals: MS Word.
ACRONYMS_TOO = MEASURES_TOO | words_of("mr ms dr jr sr st rd vs msg ea")
#: Abbreviations that only their capital or dot distinguishes from a word: "Ave." but "ave". Their
#: dot is part of them, and also ends a sentence if one seems to end there.
DOTTED = table(
    """
    Ave avenue
    Ln lane
    Rev reverend
    Hon honorable
    Gen general
    Col colonel
    Capt captain
    Cmdr commander
    Lt lieutenant
    Maj major
    Sgt sergeant
    Sen senator
    Rep representative
    Gov governor
    Pres president
    Messrs messers
    Mt mount
    Ft fort
    Apt apartment
    Ste suite
    Univ university
    Assn association
    Co company
    Esq esquire
    Est established
    Tel telephone
    Ext extension
    """
)
#: Abbreviations if a number follows.
NUMBERED = table(
    """
    no number
    nos numbers
    nr number
    fig figure
    figs figures
    vol volume
    ch chapter
    chap chapter
    sec section
    pp pages
    pg page
    p page
    art article
    eq equation
    ver version
    v version
    ext extension
    op opus
    para paragraph
    cl clause
    ca circa
    rm room
    apt apartment
    ste suite
    """
)
#: Of those, also words or letters, unless they have a dot: "No. 5" but "no 5-star hotel".
ALSO_WORDS = words_of("no nos fig figs art sec p v op para ca apt cl")
#: Of those, with a capital and a dot, also abbreviations before a Roman numeral: "Art. III".
BEFORE_ROMAN = words_of("Art Ch Vol Sec Fig No")
#: Abbreviations if a number follows that only some rules know: "exp. 12/27", "Rs. 500".
NUMBERED_TOO = words_of("exp fed rs")
#: What has a number whose digits are read one by one: "order 48213", as a pattern.
HAS_NUMBER = (
    r"account|acct|booking|case|claim|confirmation|file|invoice|member|model|order|part|policy"
    r"|ref|reference|serial|ticket|tracking"
)
#: What has a number: "policy no. is", but "I said no. then".
LABELS = words_of(HAS_NUMBER.replace("|", " ")) | words_of(
    """
    bill customer flight item license passport phone registration room routing tel telephone
    """
)
#: Kinds of streets, most without a dot.
STREET_KINDS = {"Ave": "avenue", "Ln": "lane", "Ct": "court", "Pl": "place", "Cir": "circle",
                "Sq": "square", "Ter": "terrace", "Trl": "trail", "Plz": "plaza"}  # fmt: skip
#: Rules of American courts: "Fed. R. Civ. P. 12".
COURT_RULES = {"Civ": "civil procedure", "Crim": "criminal procedure",
               "App": "appellate procedure", "Evid": "evidence"}  # fmt: skip
#: Books of the Bible, in full or abbreviated; a verse follows the chapter: "1 Cor. 13:4-7".
BOOKS = {
    "Gen": "genesis", "Ex": "exodus", "Exod": "exodus", "Lev": "leviticus", "Num": "numbers",
    "Deut": "deuteronomy", "Josh": "joshua", "Judg": "judges", "Sam": "samuel", "Kgs": "kings",
    "Chron": "chronicles", "Chr": "chronicles", "Neh": "nehemiah", "Ps": "psalm", "Pss": "psalms",
    "Prov": "proverbs", "Eccl": "ecclesiastes", "Isa": "isaiah", "Jer": "jeremiah",
    "Lam": "lamentations", "Ezek": "ezekiel", "Hos": "hosea", "Mic": "micah",
    "Zech": "zechariah", "Mal": "malachi", "Matt": "matthew", "Mt": "matthew", "Mk": "mark",
    "Lk": "luke", "Jn": "john", "Rom": "romans", "Cor": "corinthians", "Gal": "galatians",
    "Eph": "ephesians", "Phil": "philippians", "Col": "colossians", "Thess": "thessalonians",
    "Tim": "timothy", "Heb": "hebrews", "Jas": "james", "Pet": "peter", "Rev": "revelation",
}  # fmt: skip
MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
DAYS = {
    "mon": "monday", "tue": "tuesday", "tues": "tuesday", "wed": "wednesday",
    "thu": "thursday", "thur": "thursday", "thurs": "thursday", "fri": "friday",
    "sat": "saturday", "sun": "sunday",
}  # fmt: skip
#: Abbreviations beyond these tables, in lower case.
ABBREVIATED_TOO = words_of("al cf mx cpl phd ph.d pt temp viz")
#: Abbreviations of French, Spanish, German, Danish and Russian.
FOREIGN = words_of(
    """
    mme mlle sra srta dra ud uds núm pág dña bzw vgl usw evtl ggf inkl str tlf bl.a
    г-н им ул стр руб тыс млн млрд
    """
)
