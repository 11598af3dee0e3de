"""Vocabulary of single words: letter names, acronyms, words as they are spoken."""

from __future__ import annotations

from text.vocabulary import table, words_of

#: The letters' names, spelled as an English voice reads them.
LETTERS = table(
    """
    a ay
    b bee
    c see
    d dee
    e ee
    f eff
    g jee
    h aitch
    i eye
    j jay
    k kay
    l ell
    m em
    n en
    o oh
    p pee
    q cue
    r ar
    s ess
    t tee
    u you
    v vee
    w double you
    x ex
    y why
    z zee
    """
)
#: Other words that are not read as they are written.
WORDS = table(
    """
    ok okay
    btw by the way
    aka also known as
    pls please
    thx thanks
    wifi why fie
    json jay son
    jpeg jay peg
    jpg jay peg
    phd pee aitch dee
    api ay pee eye
    apis ay pee eyes
    url you ar ell
    urls you ar ells
    faq eff ay cue
    faqs eff ay cues
    usa you ess ay
    usb you ess bee
    tldr tee ell dee ar
    wwi world war one
    wwii world war two
    saas sass
    paas pass
    iot eye oh tee
    nasdaq nasdaq
    nvidia nvidia
    captcha captcha
    yaml yaml
    hvac aitch vac
    vram vee ram
    lsat ell sat
    mcat em cat
    gmat jee mat
    mmhg millimeters of mercury
    ctrl control
    cmd command
    gmail jee mail
    iaas eye ay ay ess
    nginx engine ex
    kubectl cube control
    mysql my ess cue ell
    postgresql post gress cue ell
    jpmorgan jay pee morgan
    yoy year over year
    qoq quarter over quarter
    int'l international
    gov't government
    nat'l national
    dep't department
    ass'n association
    """
)
#: Acronyms that are spelled although they could be read.
SPELLED = words_of(
    """
    aarp asap ieee ucla uefa usaid usda ussr espn isbn asic apac emea imao fifo html https ymca
    ywca eula csis isps mpaa riaa ioc nyse byod byob cyoa eyfs myob usps imho naacp nsaid sqlite
    aaas
    """
)
#: Words of two or three letters.
SHORT_WORDS = words_of(
    """
    am an as at be by do go ha he hi if in is me my no of oh on or ox so to up we ye yo
    ace act add ago aid aim air all and ant any ape arm art ash ask ate bad bag ban bar bat bay
    bed bee beg bet bid big bit box boy bug bus but buy bye cab can cap car cat cop cow cry cup
    cut dad day den did die dig dim dip dog don dot dry due dug ear eat egg ego end era eve eye
    fan far fat fax fed fee few fig fin fit fix flu fly fog for fox fun fur gag gap gas get god
    got gum gun gut guy gym had ham has hat hay hen her hey hid him hip his hit hop hot how hub
    hug huh hum hut ice icy ill ink inn its jam jar jaw jet job jog joy jug key kid kin kit lab
    lad lap law lay leg let lid lie lip lit log lot low mad man map mat max may men met mix mob
    mom mop mud mug nap net new nil nod nor not now nut oak odd off oil old one opt our out owe
    own pad pan pat paw pay pea pen pet pie pig pin pit pop pot pro put rag ram ran rap rat raw
    ray red rib rid rip rob rod rom rot row rub rug run sad sam sat saw say sea see set sex she
    shy sim sin sip sir sit six ski sky son sow soy spy sub sue sum sun tab tag tan tap tax tea
    ten the tie tin tip toe ton too top toy try tub two use van vet via vow war was wax way web
    wed wet who why wig win wit won wow yam yeah yep yes yet you zip zoo pin lan wan gif spa
    fry ply pry sly wry dum
    """
)
#: Names of two or three letters that are hardly ever initialisms.
SHORT_NAMES = words_of(
    """
    amy ann bob eli ian ivy jay jim joe jon kai ken kim lee leo liz lou meg mia ned ray rex ron roy
    ted tim tom zoe
    """
)
#: Spelled in capitals unless the whole text is in capitals: "IT", "US".
SPELLED_ALONE = frozenset({"it", "us", "er", "ad", "am", "ma", "pa", "la", "bid"})
#: Regnal names, after which a Roman numeral is an ordinal.
REGNAL = words_of(
    """
    henry edward george william charles james richard louis philip elizabeth mary victoria
    catherine alexander nicholas peter pius leo benedict gregory innocent clement urban paul
    francis frederick otto ivan napoleon ramses ptolemy leopold ferdinand alfonso
    """
)
#: Words after which a Roman numeral is a number.
COUNTED = words_of(
    """
    chapter part act scene war section volume vol phase type book class stage level article
    appendix figure table title grade group world bowl apollo episode season mark round rocky
    """
)
#: Sounds written without a vowel that are no abbreviations.
SOUNDS = words_of("hmm hm mm mmm mhm shh sh psst brr grr tsk pfft nth zzz")
