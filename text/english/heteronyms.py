"""Words that are spelled alike and sound different: "I live here", "live music".

A word's neighbours choose its reading, by rules that are data. Each rule is a line such as
``2 TO|MODAL _ DET``: the second reading, between a word of the kinds TO or MODAL and a word of the
kind DET. Lower-case names are words themselves, ``STOP`` is a pause or an end, and the word itself
is ``_``. After ``*``, a word may be anywhere in the rest of the clause. Adverbs before a word may
be passed over. The first rule that applies wins, else the word's usual reading. Sounds are in the
signs of :mod:`text.english.sounds`.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from text.english.endings import plural
from text.reader import Normalised

#: Words of each kind; other words have the kind of their ending, or OTHER.
_KINDS = {
    word: kind
    for kind, words in {
        "DET": "a an the my your his her its our their whose every each some any no another what"
        " which this these those many several few both all various"
        " much more most less own same other next first last whole entire daily new"
        " old good great big small large huge best better recent special public private real"
        " human personal strong high heavy low long short early final current original average"
        " annual foreign free full main major minor double single hot cold young little bad",
        "NUM": "one two three four five six seven eight nine ten eleven twelve twenty thirty forty"
        " fifty sixty seventy eighty ninety hundred thousand million billion zero half",
        "PREP": "of in on at by with for from about into without as under over between during"
        " after before than like per via against among through within beyond despite onto upon",
        "TO": "to gonna wanna gotta",
        "MODAL": "will would can could should may might must shall do does did cannot please let's"
        " don't won't can't",
        "LET": "let lets help helps helped make makes made",
        "HAVE": "have has had having haven't hasn't hadn't he's she's",
        "BE": "be am is are was were been being it's that's there's what's who's isn't aren't"
        " wasn't weren't seem seems seemed feel feels felt remain remains",
        "SUBJ": "i we you they who",
        "HE": "he she",
        "IT": "it",
        "THAT": "that",
        "OBJ": "him me us them myself yourself himself herself itself ourselves themselves"
        " everything everyone something anything nothing",
        "PEOPLE": "people children men women families students parents adults animals staff",
        "CONJ": "and or but nor",
        "WH": "when where why how if because while although unless until once whether since",
        "ADV": "either neither not only never also always often just still then now already ever"
        " even soon usually sometimes rarely again quite very too so really well here"
        " there maybe perhaps almost together currently",
        "STOP": ". , ? !",
        "OTHER": "family reply july italy news business class glass process access bus this'll",
    }.items()
    for word in words.split()
}
_KINDS_OF_ENDINGS = {
    "n't": "MODAL", "'ll": "MODAL", "'d": "MODAL", "'ve": "HAVE", "'re": "BE", "'m": "BE",
    "'s": "DET", "ly": "ADV", "ss": "OTHER", "us": "OTHER", "is": "OTHER", "s": "PLURAL",
    "ing": "ING", "ed": "PAST",
}  # fmt: skip
_WORD_OR_MARK = re.compile(r"[a-z']+|[.,?!]")
#: What is before the first word and after the last.
_END = (".", "STOP")
#: Neighbours that are looked at before and after a word.
_BEFORE, _AFTER = 4, 8

#: A noun or adjective, and a verb: "a record", "to record". The noun is the usual reading.
_NOUNS = """
abstract ˈæbstrˌækt əbstrˈækt
abuse əbJˈUs əbJˈUz
addict ˈædɪkt ədˈɪkt
advocate ˈædvəkət ˈædvəkˌAt
affiliate əfˈɪlEət əfˈɪlEˌAt
affix ˈæfˌɪks əfˈɪks
aggregate ˈægrəgət ˈægrəgˌAt
ally ˈælˌI əlˈI
associate əsˈOsEət əsˈOsEˌAt
attribute ˈætrəbJˌUt ətrˈɪbJˌUt
commune kˈɑmJˌUn kəmJˈUn
compound kˈɑmpˌWnd kəmpˈWnd
concert kˈɑnsərt kənsˈɜrt
confederate kənfˈɛdərət kənfˈɛdərˌAt
conflict kˈɑnflˌɪkt kənflˈɪkt
conglomerate kənglˈɑmərət kənglˈɑmərˌAt
conscript kˈɑnskrˌɪpt kənskrˈɪpt
console kˈɑnsˌOl kənsˈOl
consort kˈɑnsɔrt kənsˈɔrt
contest kˈɑntˌɛst kəntˈɛst
contract kˈɑntrˌækt kəntrˈækt
contrast kˈɑntrˌæst kəntrˈæst
convict kˈɑnvˌɪkt kənvˈɪkt
coordinate kOˈɔrdənət kOˈɔrdənˌAt
decrease dˈEkrˌEs dəkrˈEs
defect dˈEfɛkt dəfˈɛkt
degenerate dəʤˈɛnərət dəʤˈɛnərˌAt
delegate dˈɛləgət dˈɛləgˌAt
desert dˈɛzərt dəzˈɜrt
discharge dˈɪsʧˌɑrʤ dɪsʧˈɑrʤ
discount dˈɪskˌWnt dˌɪskˈWnt
duplicate dˈUpləkət dˈUpləkˌAt
entrance ˈɛntrəns ɛntrˈæns
escort ˈɛskˌɔrt ɪskˈɔrt
estimate ˈɛstəmət ˈɛstəmˌAt
excerpt ˈɛksˌɜrpt ɛksˈɜrpt
excise ˈɛksˌIz ɪksˈIz
expatriate ɛkspˈAtrEət ɛkspˈAtrEˌAt
exploit ˈɛksplˌYt ɪksplˈYt
export ˈɛkspˌɔrt ɪkspˈɔrt
extract ˈɛkstrˌækt ɪkstrˈækt
fragment frˈægmənt frˈægmˌɛnt
graduate grˈæʤəwət grˈæʤəwˌAt
impact ˈɪmpˌækt ɪmpˈækt
implant ˈɪmplˌænt ɪmplˈænt
import ˈɪmpˌɔrt ɪmpˈɔrt
imprint ˈɪmprˌɪnt ɪmprˈɪnt
incense ˈɪnsˌɛns ɪnsˈɛns
incline ˈɪnklˌIn ɪnklˈIn
increase ˈɪnkrˌEs ɪnkrˈEs
initiate ɪnˈɪʃEət ɪnˈɪʃEˌAt
inlay ˈɪnlˌA ˌɪnlˈA
insert ˈɪnsˌɜrt ɪnsˈɜrt
insult ˈɪnsˌʌlt ɪnsˈʌlt
intercept ˈɪntərsɛpt ˌɪntərsˈɛpt
interchange ˈɪntərʧˌAnʤ ˌɪntərʧˈAnʤ
misprint mˈɪsprˌɪnt mˌɪsprˈɪnt
mismatch mˈɪsmˌæʧ mˌɪsmˈæʧ
misuse mˌɪsJˈUs mˌɪsJˈUz
object ˈɑbʤəkt əbʤˈɛkt
ornament ˈɔrnəmᵊnt ˈɔrnəmˌɛnt
overflow ˈOvərflˌO ˌOvərflˈO
overhaul ˈOvərhˌɔl ˌOvərhˈɔl
overlap ˈOvərlˌæp ˌOvərlˈæp
overlay ˈOvərlˌA ˌOvərlˈA
override ˈOvərrˌId ˌOvərrˈId
overthrow ˈOvərθrˌO ˌOvərθrˈO
overestimate ˌOvərˈɛstəmət ˌOvərˈɛstəmˌAt
permit pˈɜrmɪt pərmˈɪt
postulate pˈɑsʧələt pˈɑsʧəlˌAt
precipitate prEsˈɪpəɾət prEsˈɪpətˌAt
predicate prˈɛdəkət prˈɛdəkˌAt
present prˈɛzᵊnt prEzˈɛnt
project prˈɑʤˌɛkt prəʤˈɛkt
protest prˈOtˌɛst prətˈɛst
rebel rˈɛbᵊl rəbˈɛl
rebound rˈEbˌWnd rEbˈWnd
recap rˈEkˌæp rEkˈæp
recess rˈEsˌɛs rəsˈɛs
record rˈɛkərd rəkˈɔrd
recount rˈEkˌWnt rEkˈWnt
refill rˈEfˌɪl rEfˈɪl
refund rˈEfˌʌnd rəfˈʌnd
rehash rˈEhˌæʃ rEhˈæʃ
reject rˈEʤˌɛkt rəʤˈɛkt
relapse rˈElˌæps rəlˈæps
relay rˈElˌA rElˈA
remake rˈEmˌAk rEmˈAk
replay rˈEplˌA rEplˈA
reprint rˈEprˌɪnt rEprˈɪnt
rerun rˈErˌʌn rErˈʌn
retake rˈEtˌAk rEtˈAk
retread rˈEtrˌɛd rEtrˈɛd
rewrite rˈErˌIt rErˈIt
segment sˈɛgmᵊnt sˈɛgmˌɛnt
subject sˈʌbʤɛkt səbʤˈɛkt
subordinate səbˈɔrdənət səbˈɔrdənˌAt
supplement sˈʌpləmənt sˈʌpləmˌɛnt
survey sˈɜrvˌA sərvˈA
suspect sˈʌspˌɛkt səspˈɛkt
syndicate sˈɪndəkət sˈɪndəkˌAt
torment tˈɔrmˌɛnt tɔrmˈɛnt
transfer trˈænsfər trænsfˈɜr
transplant trˈænsplˌænt trænsplˈænt
undercut ˈʌndərkˌʌt ˌʌndərkˈʌt
uplift ˈʌplˌɪft ˌʌplˈɪft
upstart ˈʌpstˌɑrt ʌpstˈɑrt
"""
#: The same for adjectives, and nouns without a plural: a word with -s is a verb.
_ADJECTIVES = """
alternate ˈɔltərnət ˈɔltərnˌAt
appropriate əprˈOprEət əprˈOprEˌAt
approximate əprˈɑksəmət əprˈɑksəmˌAt
articulate ɑrtˈɪkJələt ɑrtˈɪkJəlˌAt
combat kˈɑmbˌæt kəmbˈæt
compact kˈɑmpˌækt kəmpˈækt
conduct kˈɑndˌʌkt kəndˈʌkt
deliberate dəlˈɪbərət dəlˈɪbərˌAt
desolate dˈɛsələt dˈɛsəlˌAt
elaborate əlˈæbərət əlˈæbərˌAt
frequent frˈEkwənt frEkwˈɛnt
intimate ˈɪntəmət ˈɪntəmˌAt
legitimate ləʤˈɪɾəmət ləʤˈɪɾəmˌAt
misconduct mˌɪskˈɑndəkt mˌɪskəndˈʌkt
moderate mˈɑdərət mˈɑdərˌAt
perfect pˈɜrfəkt pərfˈɛkt
produce prˈOdˌUs prədˈUs
progress prˈɑgrəs prəgrˈɛs
separate sˈɛpərət sˈɛpərˌAt
transport trˈænspˌɔrt trænspˈɔrt
triplicate trˈɪpləkət trˈɪpləkˌAt
live lˈIv lˈɪv
close klˈOs klˈOz
"""
#: The same, where the verb is the usual reading.
_VERBS = """
animate ˈænəmət ˈænəmˌAt
collect kˈɑlɛkt kəlˈɛkt
combine kˈɑmbˌIn kəmbˈIn
compress kˈɑmprˌɛs kəmprˈɛs
confine kˈɑnfIn kənfˈIn
construct kˈɑnstrˌʌkt kənstrˈʌkt
consummate kˈɑnsəmət kˈɑnsəmˌAt
converse kˈɑnvˌɜrs kənvˈɜrs
convert kˈɑnvˌɜrt kənvˈɜrt
correlate kˈɔrələt kˈɔrəlˌAt
designate dˈɛzɪgnət dˈɛzɪgnˌAt
diffuse dəfJˈUs dəfJˈUz
digest dˈIʤˌɛst dIʤˈɛst
discard dˈɪskˌɑrd dəskˈɑrd
excuse ɪkskJˈUs ɪkskJˈUz
ferment fˈɜrmˌɛnt fərmˈɛnt
impress ˈɪmprˌɛs ɪmprˈɛs
indent ˈɪndˌɛnt ɪndˈɛnt
intrigue ˈɪntrˌEg ɪntrˈEg
invite ˈɪnvˌIt ɪnvˈIt
isolate ˈIsələt ˈIsəlˌAt
laminate lˈæmənət lˈæmənˌAt
overturn ˈOvərtˌɜrn ˌOvərtˈɜrn
overwork ˈOvərwˌɜrk ˌOvərwˈɜrk
pervert pˈɜrvˌɜrt pərvˈɜrt
purport pˈɜrpˌɔrt pərpˈɔrt
recall rˈEkˌɔl rəkˈɔl
recoil rˈEkˌYl rəkˈYl
redirect rˈEdərˌɛkt rˌEdərˈɛkt
refuse rˈɛfJˌUs rəfJˈUz
regress rˈEgrˌɛs rəgrˈɛs
reset rˈEsˌɛt rEsˈɛt
resume rˈɛzəmˌA rəzˈUm
rethink rˈEθˌɪŋk rEθˈɪŋk
reuse rEJˈUs rEJˈUz
rewind rˈEwˌInd rEwˈInd
sow sˈW sˈO
transform trˈænsfˌɔrm trænsfˈɔrm
underestimate ˌʌndərˈɛstəmət ˌʌndərˈɛstəmˌAt
upset ˈʌpsˌɛt ˌʌpsˈɛt
use JˈUs JˈUz
"""
#: Other pairs, with rules of their own alone. The first reading is the usual one.
_OTHERS = """
read rˈEd rˈɛd
reread rˌErˈEd rˌErˈɛd
misread mˌɪsrˈEd mˌɪsrˈɛd
proofread prˈUfrˌEd prˈUfrˌɛd
lead lˈEd lˈɛd
lives lˈIvz lˈɪvz
house hˈWs hˈWz
houses hˈWzᵻz hˈWzᵻz
used JˈUzd JˈUst
wind wˈɪnd wˈInd
winds wˈɪndz wˈIndz
wound wˈUnd wˈWnd
tear tˈɪr tˈɛr
tears tˈɪrz tˈɛrz
bow bˈO bˈW
bows bˈOz bˈWz
bass bˈAs bˈæs
dove dˈʌv dˈOv
does dˈʌz dˈOz
minute mˈɪnət mInˈUt
deserts dˈɛzərts dəzˈɜrts
invalid ɪnvˈælɪd ˈɪnvəlɪd
invalids ˈɪnvəlɪdz ˈɪnvəlɪdz
content kˈɑntɛnt kəntˈɛnt
complex kˈɑmplˌɛks kəmplˈɛks
polish pˈɑlɪʃ pˈOlɪʃ
Polish pˈOlɪʃ pˈɑlɪʃ
august ˈɔgəst ɔgˈʌst
Job ʤˈɑb ʤˈOb
Reading rˈEdɪŋ rˈɛdɪŋ
Nice nˈIs nˈEs
Mobile mˈObᵊl mObˈEl
learned lˈɜrnd lˈɜrnᵻd
aged ˈAʤd ˈAʤᵻd
blessed blˈɛst blˈɛsᵻd
axes ˈæksˌEz ˈæksᵻz
bases bˈAsᵻz bˈAsEz
analyses ənˈæləsˌEz ˈænəlˌIzᵻz
diagnoses dˌIəgnˈOsˌEz dˌIəgnˈOsᵻz
moped mˈOpˌɛd mˈOpt
primer prˈImər prˈɪmər
resent rəzˈɛnt rEsˈɛnt
proceeds prˈOsˌEdz prəsˈEdz
lima lˈEmə lˈImə
expose ɪkspˈOz ˌɛkspOzˈA
pate pˈAt pætˈA
"""
#: Words that only an accent tells from others, or that are unknown without it.
_ACCENTED = {
    "résumé": "rˈɛzəmˌA", "resumé": "rˈɛzəmˌA", "exposé": "ˌɛkspOzˈA", "rosé": "rOzˈA",
    "pâté": "pætˈA", "lamé": "læmˈA", "maté": "mˈɑtA", "saké": "sˈɑkE", "flambé": "flɑmbˈA",
    "touché": "tUʃˈA", "blasé": "blɑzˈA", "née": "nˈA", "consommé": "kˌɑnsəmˈA",
    "soufflé": "sUflˈA", "glacé": "glæsˈA", "piqué": "pEkˈA", "roué": "rUˈA", "olé": "OlˈA",
    "déjà": "dˌAʒˈɑ", "señor": "sAnJˈɔr", "señora": "sAnJˈɔrə", "frappé": "fræpˈA",
    "appliqué": "ˌæpləkˈA", "outré": "UtrˈA", "brûlée": "brUlˈA", "piña": "pˈEnJə",
    "niño": "nˈEnJO", "mañana": "mənJˈɑnə", "rosés": "rOzˈAz", "habitué": "həbˈɪʧəwˌA",
}  # fmt: skip

_VERB_OR_NOUN = """
1 according|due|close|access|up|addition|regard|opposed|thanks|prior|relative|contrary TO _
2 TO|MODAL _
2 LET|see|sees|saw|watch|watched|hear|heard OBJ|IT|you|PLURAL|PEOPLE _
2 let|lets|help|helps|helped OTHER _
2 let|lets|help|helps|helped DET OTHER|PLURAL|PEOPLE _
2 MODAL OBJ|IT|SUBJ|HE _
2 MODAL DET OTHER|PLURAL|PEOPLE _
2 STOP|WH MODAL OTHER|PLURAL|PEOPLE _
2 SUBJ|HE|PEOPLE _
2 SUBJ both|all|each _
2 TO|MODAL OTHER CONJ _
2 THAT|which _ DET|OBJ|IT
1 DET|THAT|NUM|PREP|BE|HAVE|made _
1 PREP|HAVE OTHER _
1 DET|PREP|HAVE PAST|ING _
1 LET|PAST|ING _ every|each|this|last|next
2 _ DET|OBJ|IT|you
1 DET OTHER _
"""
#: For "prices increase", but not for what may also follow "shows": "shows progress".
_AFTER_PLURAL = """
1 sports|sales|arms|savings|customs|systems|rights|goods|series|arts|operations _
1 HE|IT|who|which|THAT|this PLURAL _
2 PLURAL _
"""
_THIRD_OR_PLURAL = """
1 PREP which _
2 HE|IT|who|which|THAT|this _
1 DET ADV _
2 ADV _
1 DET|NUM|PREP|BE|HAVE|LET|TO|MODAL|OBJ|SUBJ|ING _
1 _ such
2 OTHER _ PLURAL
2 _ DET|OBJ|IT|you|NUM
"""
_PAST_READ = """
2 HAVE _
1 _ only|write|error|errors|thread|access|permission|permissions|speed|operation|request|requests
2 BE|being|been|get|got|as|best|well|widely _
1 TO|MODAL _
2 HAVE SUBJ|HE|IT|OTHER|PLURAL|PEOPLE _
2 HAVE DET OTHER|PLURAL|PEOPLE _
1 LET OBJ|IT|you|OTHER|PLURAL|PEOPLE _
1 LET|MODAL DET OTHER|PLURAL|PEOPLE _
1 MODAL OBJ|IT|SUBJ|HE|OTHER|PLURAL|PEOPLE _
2 _ by|receipt|receipts
1 if|when|before|until|whenever|unless SUBJ _
2 HE|IT|everyone|everybody|nobody|someone|somebody _
2 SUBJ|PEOPLE|PLURAL _ *yesterday|ago|last|earlier|once|recently
1 DET|PREP _
1 always|usually|often|never|rarely|sometimes|generally _
1 SUBJ _ *every|each|daily|always|often|usually|sometimes|aloud|to
2 i|we _ DET|IT|THAT|about|somewhere
2 DET OTHER _
2 OTHER _ DET|THAT|OBJ|IT|PREP|TO|out|aloud
"""
_BEFORE_MUSIC = (
    "music|stream|streams|streaming|streamed|show|shows|event|events|concert|concerts|video|audio"
    "|chat|band|broadcast|broadcasts|coverage|tv|television|performance|performances|update"
    "|updates|sports|demo|session|sessions|wire|ammunition|bait|audience|data|feed|preview"
    "|version|tonight"
)
_BESIDE_POLISH = (
    "people|language|government|president|army|border|food|sausage|woman|man|city"
    "|parliament|history|citizens|citizen|immigrants|film|poet|club|airlines|minister"
    "|descent|origin|restaurant|town"
)
#: Rules of single words, which precede the rules above.
_OWN = {
    "read": _PAST_READ, "reread": _PAST_READ, "misread": _PAST_READ, "proofread": _PAST_READ,
    "live": f"""
        1 _ {_BEFORE_MUSIC}
        1 _ on stage|air|tv|television|youtube|twitch
        1 _ in concert
        1 go|goes|going|went|gone|stream|streaming|streamed|broadcast|broadcasting|perform|
            performs|performing|performed|play|plays|playing|played|sing|sings|singing|recorded|
            airs|airing|aired|appear|stay|it's|listen _
        1 watch|watched|see|saw|seen|catch|hear|heard|play|perform|stream|record|recorded IT|OBJ|
            OTHER|PLURAL|PEOPLE _
        2 SUBJ|PEOPLE|PLURAL|OTHER|CONJ _ in|with|at|on|near|here|there|under|among|within|without|
            together|alone|next|across|by|longer|like|happily|forever|long|through|apart|abroad|
            outside|and|off
        2 long _ DET
    """,
    "reset": """
        2 BE|get|gets|got _
    """,
    "upset": """
        2 BE|get|gets|got|getting|very|so|too _
    """,
    "lives": """
        2 HE|IT|who|which|THAT _
        1 DET|NUM|PREP|TO|MODAL|LET|OBJ|save|saved|saves|saving _
        2 _ in|at|with|near|here|there|alone|next|on|across|by|under|downstairs|upstairs|abroad|
            together|off
    """,
    "close": """
        1 _ to|enough|together|friend|friends|call|relative|relatives
        2 DET _ of
        2 the|market _ STOP
        2 to a _
        1 come|comes|came|coming|get|gets|got|getting|stay|stays|keep|stand|stood|sit|hold|held|
            up _ STOP|PREP|TO|and
        2 PLURAL _ DET|IT|PREP|early|late|STOP
    """,
    "house": """
        2 SUBJ|HE _ DET|NUM|PLURAL|PEOPLE
        2 TO|MODAL _ DET|NUM|OBJ|IT|THAT|PLURAL|PEOPLE|PREP
    """,
    "present": """
        2 TO|MODAL|SUBJ|HE _
        2 PEOPLE _ DET|IT|OBJ
        1 _ in|at|on|during|only|STOP
        1 PEOPLE _
    """,
    "record": """
        1 _ high|highs|low|lows|heat|cold|number|numbers
    """,
    "objects": """
        2 OTHER _ to
    """,
    "conflicts": """
        2 OTHER _ with
    """,
    "use": """
        1 did|didn't _ to
        1 did|didn't SUBJ|HE|OTHER _ to
        1 making|make|makes|made|in|of|drug|land|water|energy|alcohol|tobacco|internet|fuel|memory|
            data|computer|cpu|disk|power|commercial _
        1 _ of
        1 _ case|cases
    """,
    "uses": """
        1 _ of
    """,
    "used": """
        2 i'm|get|gets|got|getting|become|became|becoming|are|we're|they're|you're|is|was|were|
            be _ to ING|IT|DET|OBJ|this|that
        1 BE|HAVE|WH|PLURAL|STOP|CONJ _
        2 _ to
    """,
    "lead": """
        2 _ pipe|pipes|paint|paints|poisoning|pencil|pencils|acid|bullets|bullet|crystal|oxide|
            batteries|battery|contamination|exposure|lined|solder|mine|mines|ore|apron|levels|dust|
            smelter
        2 of|about|contain|contains|containing|contained|molten|melted|liquid _ STOP|CONJ|PREP|BE
        2 as _ STOP
        2 zinc|tin|iron|mercury|arsenic|cadmium|copper|silver|gold CONJ _
        2 _ CONJ zinc|tin|mercury|arsenic|cadmium|copper
        2 metal _
        2 _ is heavy|toxic|poisonous|denser|dense|soft
        2 _ is a metal|element|toxic|heavy|poison
    """,
    "wind": """
        2 TO|MODAL|SUBJ|HE _ up|down|back|its|through|around|along|DET|IT|OBJ
        2 road|roads|river|path|paths|trail|trails|PLURAL _ through|around|along|up|down|past
        2 STOP|CONJ _ DET|IT|OBJ
    """,
    "winds": """
        2 road|river|path|trail|street|stream|valley|story|HE|IT|THAT|which _ through|around|along|
            down|past|its|up|between
    """,
    "wound": """
        1 DET|PREP|NUM _
        2 HE|IT|SUBJ|HAVE|tightly|BE _
        2 _ up|down|around|back|its|along|tightly
    """,
    "tear": """
        1 _ gas|drop|drops|duct|ducts|jerker|stained
        2 wear CONJ _
        2 muscle|ligament|meniscus|cuff|tendon|hamstring|calf|groin _
        2 a|the _ in|on|along
        2 TO|MODAL|SUBJ _
        2 _ down|up|off|apart|away|out|open|into|it|through|along|here
        2 STOP|CONJ _ DET|IT|OBJ
    """,
    "tears": """
        1 DET|PREP _
        2 HE|IT|THAT|which|who _
        2 _ up|apart|off|open|through|away|it|DET
    """,
    "bow": """
        1 _ and arrow|arrows
        1 _ tie|ties
        2 _ down|out|to|before|politely
        2 TO|MODAL|SUBJ|HE|PEOPLE _
        2 take|takes|took|taking _ STOP
        2 take|takes|took|taking|deep|final|slight|polite|low a _
        2 deep|final|slight|low|polite|last|ship's|boat's|starboard _
        2 DET _ of
    """,
    "bows": """
        2 HE|who _
        2 _ down|out|to|before|politely
    """,
    "bass": """
        2 _ fishing|boat|boats|fisherman|fishermen|pond|lake
        2 sea|largemouth|smallmouth|striped|caught|catch|grilled|fried|chilean|fish|ate _
        2 caught|catch|ate|grilled DET _
    """,
    "dove": """
        1 a|the|DET _
        2 SUBJ|HE|IT|OTHER|PLURAL _ into|in|deep|deeper|off|down|under|right|straight|headfirst|
            for|through|from
    """,
    "does": """
        2 bucks|deer CONJ _
        2 two|three|four|five|several|female _ STOP|CONJ|PREP|were|are|have|had
        2 the _ were|are|have|STOP|CONJ
    """,
    "minute": """
        2 _ detail|details|amount|amounts|traces|particles|quantities|quantity|differences|
            difference|changes|fraction
        2 very|extremely|so|incredibly|too _
    """,
    "deserts": """
        2 just _
        2 HE|who _
        2 _ his|her|its|their|him|her
    """,
    "invalid": """
        2 an|the|elderly|bedridden _ STOP
        2 an|the|elderly|bedridden _ for
    """,
    "content": """
        2 BE|quite|perfectly|fairly|not _ STOP|with|to|just|CONJ|in
        2 _ OBJ
    """,
    "complex": """
        1 a|the|this|apartment|housing|sports|office|inferiority|oedipus|military|
            industrial _ STOP|of|in|on|with|is|was|BE
        2 BE|very|more|too|so|most|highly|increasingly|quite|DET|HAVE|ADV|PREP|CONJ|ING _
    """,
    "polish": f"""
        2 _ {_BESIDE_POLISH}
        2 speak|speaks|spoke|speaking|learn|learning|learned|into|fluent|in _
    """,
    "Polish": f"""
        1 _ {_BESIDE_POLISH}
        2 nail|shoe|furniture|french|STOP _
    """,
    "august": """
        2 _ body|institution|company|assembly|committee|presence
        2 an|most|such _
    """,
    "Job": """
        2 of|CONJ _ STOP|CONJ|chapter|BE|NUM
    """,
    "Reading": """
        2 in|to|from|near|of|at _ STOP|PREP|CONJ|BE|station|university
    """,
    "Nice": """
        2 in|to|from|near|of _ STOP|PREP|CONJ|BE
    """,
    "Mobile": """
        2 in|to|from|near _ STOP|PREP|CONJ|BE|alabama
        2 _ STOP alabama
    """,
    "learned": """
        2 _ man|men|woman|scholar|scholars|professor|judge|judges|society|societies|colleague|
            gentleman
    """,
    "aged": """
        2 DET _ man|woman|men|women|mother|father|parents|couple|relative|relatives
        2 the _ STOP|CONJ
    """,
    "blessed": """
        2 DET _
        2 _ are|virgin|mother|sacrament
    """,
    "axes": """
        2 sharp|battle|stone|with|swinging|throwing|hand _
        2 _ CONJ swords|spears|picks|hammers|knives|shovels|saws
        2 swords|spears|picks|hammers|knives|shovels|saws CONJ _
    """,
    "bases": """
        2 legal|theoretical|empirical|scientific|vector|orthonormal|factual _
    """,
    "analyses": """
        2 HE|IT|who|which|THAT _
        1 DET|NUM|PREP|TO|MODAL|OBJ _
        2 _ DET|OBJ|IT
    """,
    "diagnoses": """
        2 HE|IT|who|which|THAT _
        1 DET|NUM|PREP|TO|MODAL|OBJ _
        2 _ DET|OBJ|IT
    """,
    "moped": """
        2 SUBJ|HE _
        2 _ about|around
    """,
    "primer": """
        2 _ on|to
    """,
    "resent": """
        2 HAVE|BE _
    """,
    "proceeds": """
        2 HE|IT|who|which|THAT|OTHER _ to|with|as|through|without
    """,
    "lima": """
        2 _ bean|beans
    """,
    "expose": """
        2 an _
    """,
    "pate": """
        2 liver|duck|salmon|goose _
    """,
}  # fmt: skip

_Pattern = tuple[frozenset[str], ...]
_Token = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Chooses a reading by the words before and after a word, nearest first."""

    reading: int
    before: _Pattern
    after: _Pattern

    def applies(
        self, before: Sequence[_Token], plain: Sequence[_Token], after: Sequence[_Token]
    ) -> bool:
        """Whether the neighbours fit. ``plain`` is ``before`` without adverbs."""
        if not _fits(self.before, before) and not _fits(self.before, plain):
            return False
        if self.after and "*" in self.after[0]:
            clause = itertools.takewhile(lambda token: token[0] not in ".?!", after)
            return any(not self.after[0].isdisjoint(token) for token in clause)
        return _fits(self.after, after)


@dataclass(frozen=True, slots=True)
class _Heteronym:
    """A word's two readings, the number of the usual one, and the rules that choose, in order."""

    readings: tuple[str, str]
    usual: int
    rules: tuple[_Rule, ...]


def _fits(pattern: _Pattern, tokens: Sequence[_Token]) -> bool:
    return len(pattern) <= len(tokens) and not any(map(frozenset.isdisjoint, pattern, tokens))


@functools.cache
def _rules(table: str) -> tuple[_Rule, ...]:
    """Return the rules of a table. A line that ends with "|" goes on in the next."""
    lines = re.sub(r"\|\s+", "|", table).splitlines()
    return tuple(map(_rule, filter(None, map(str.strip, lines))))


def _rule(line: str) -> _Rule:
    number, _, rest = line.partition(" ")
    before, _, after = (
        tuple(frozenset(group.replace("*", "*|").split("|")) for group in part.split())
        for part in rest.partition("_")
    )
    return _Rule(int(number) - 1, before[::-1], after)


def _pairs(table: str) -> Iterator[list[str]]:
    return map(str.split, table.strip().splitlines())


def _with_s(word: str) -> str:
    """Return how the plural, or the third person, of a word is spelled."""
    if word.endswith("ly"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "h")) else "s")


@functools.cache
def _heteronyms() -> dict[str, _Heteronym]:
    """Return all words with several readings: the pairs above, and what ends in -s of them."""
    found: dict[str, _Heteronym] = {}
    general = _rules(_VERB_OR_NOUN)
    after_plural = general + _rules(_AFTER_PLURAL)
    tables = (
        (_NOUNS, 0, 0, after_plural),
        (_ADJECTIVES, 0, 1, general),
        (_VERBS, 1, 1, after_plural),
    )
    for table, usual, usual_with_s, shared in tables:
        for word, noun, verb in _pairs(table):
            rules = _rules(_OWN.get(word, "")) + shared
            found[word] = _Heteronym((noun, verb), usual, rules)
            word = _with_s(word)
            rules = _rules(_OWN.get(word, "")) + _rules(_THIRD_OR_PLURAL)
            found[word] = _Heteronym((plural(noun), plural(verb)), usual_with_s, rules)
    for word, first, second in _pairs(_OTHERS):
        found[word] = _Heteronym((first, second), 0, _rules(_OWN.get(word, "")))
    return found


@functools.lru_cache(maxsize=4096)
def _kind(word: str) -> str:
    """Guess the part of speech of a word."""
    endings = (kind for ending, kind in _KINDS_OF_ENDINGS.items() if word.endswith(ending))
    return _KINDS.get(word) or next(endings, "OTHER")


def heteronyms(source: str, reading: Normalised) -> dict[int, str]:
    """Choose the sounds of words that are spelled alike.

    Args:
        source: The text as it was written, whose accents and capitals count.
        reading: The words that are spoken for it.

    Returns:
        The sounds of these words, by their number in ``reading.spans``.
    """
    known, found = _heteronyms(), dict[int, str]()
    tokens = [_END, *((word, _kind(word)) for word in _WORD_OR_MARK.findall(reading.text)), _END]
    places = [place for place, (_, kind) in enumerate(tokens) if kind != "STOP"]
    for number, (span, place) in enumerate(zip(reading.spans, places, strict=True)):
        written = source[span.source_start : span.source_end]
        if not written.isascii() and (sound := _accented(written)):
            found[number] = sound
        elif entry := known.get(written) or known.get(tokens[place][0]):
            found[number] = _chosen(entry, tokens, place)
    return found


def _accented(written: str) -> str | None:
    """Return the sounds of an accented word, or of its plural or possessive."""
    word = unicodedata.normalize("NFC", written).lower().replace("’", "'")
    stem = word.removesuffix("s").removesuffix("'")
    sound = _ACCENTED.get(stem)
    return plural(sound) if sound and stem != word else sound


def _chosen(entry: _Heteronym, tokens: Sequence[_Token], place: int) -> str:
    before = tokens[max(0, place - _BEFORE) : place][::-1]
    plain = [token for token in before if token[1] != "ADV"]
    after = tokens[place + 1 : place + 1 + _AFTER]
    for rule in entry.rules:
        if rule.applies(before, plain, after):
            return entry.readings[rule.reading]
    return entry.readings[entry.usual]
