"""Which family and branch a language belongs to: what `groups: families` goes by.

Genealogical classification after Glottolog 5 (Hammarström, Forkel, Haspelmath & Bank, glottolog.org, CC BY 4.0), with
Ethnologue's names where those are the better known (Niger-Congo's core is Glottolog's Atlantic-Congo, Kra-Dai its
Tai-Kadai). A `family` is a largest proven unit; a `branch` is of the order of Germanic, Romance and Slavic within
Indo-European. There is no Altaic family here, nor a Sino-Tibetan that holds Thai, as some papers have it: who
    wants to
repeat those writes `groups: explicit`. Creoles stand with the language that their words are from, as Glottolog has
them; Latin stands with its daughters.

Facts only, no text of those works. Knows no engines and no recipes, save the languages that a toy recipe invents.
"""

from __future__ import annotations

from collections.abc import Callable

from fedmt import recipe
from fedmt.corpus import languages, toy
from fedmt.errors import CorpusError

__all__ = ["TABLE", "family", "teller"]

# A family, its branches, and the codes of their languages: of two letters where ISO 639 has one, else of three.
_FAMILIES = """
Indo-European
  Germanic: af bar da de en fo fy gsw is jam lb li nb nds nl nn no pcm sco srn stq sv tpi bi vls yi zea
  Romance: an ast ca co cbk egl es ext fr frp fur gl ht it kea la lad lij lmo lld mfe mwl nap oc pap pcd pms pt rm
    ro rup sc scn vec wa
  Slavic: be bg bs cs csb cu dsb hr hsb mk pl ru rue sh sk sl sr szl uk
  Baltic: lt ltg lv sgs
  Celtic: br cy ga gd gv kw
  Hellenic: el grc pnt
  Albanian: sq
  Armenian: hy hyw
  Indo-Aryan: anp as awa bho bn bpy dv gbm gom gu hi hif hne kok ks kfy mag mai mr mwr ne or pa pi pnb rhg rom sa
    sck sd si skr syl ur
  Iranian: ae bal ckb diq fa glk haz ku lki lrc mzn os prs ps sdh tg zza
Uralic
  Finnic: et fi fit fkv izh krl liv olo vep vot vro
  Saami: se sma smj smn sms
  Hungarian: hu
  Mordvin: mdf myv
  Mari: chm mhr mrj
  Permic: koi kpv kv udm
  Ob-Ugric: kca mns
  Samoyed: yrk
Turkic
  Oghuz: az azb gag tk tr
  Kipchak: ba crh kaa kk krc kum ky nog tt
  Karluk: ug uz
  Siberian-Turkic: alt kjh sah tyv
  Oghur: cv
Mongolic
  Mongolian: bxr mn mvf xal
Tungusic
  Tungusic: eve evn mnc
Koreanic
  Koreanic: ko
Japonic
  Japanesic: ja
  Ryukyuan: ryu
Sino-Tibetan
  Sinitic: cdo cjy cpx gan hak hsn lzh nan wuu yue zh
  Burmish: my rki
  Bodish: bo dz
  Newaric: new
  Kuki-Chin-Naga: cfm cnh ctd lus mni
  Brahmaputran: brx grt kac trp
  Loloish: ahk ii lhu lis
  Karenic: blk ksw kjp
Tai-Kadai
  Tai: blt kkh khb lo nod nut shn th tts za
Hmong-Mien
  Hmongic: hmn hnj mww
  Mienic: ium
Austroasiatic
  Vietic: mtq vi
  Khmer: km
  Khasian: kha
  Munda: hoc mun sat
  Monic: mnw
Austronesian
  Malayic: bjn iba id min ms mui pse
  Chamic: ace cja cjm
  Javanese: jv
  Sundanese: su
  Madurese: mad
  Bali-Sasak: ban sas
  Northwest-Sumatran: bbc bts btx nia
  Philippine: bcl bik ceb cyo hil ilo krj mdh mrw msb pag pam tl tsg war
  South-Sulawesi: bug mak
  Malagasy: mg
  Chamorro: ch
  Palauan: pau
  Oceanic: fj gil haw ho mh mi na niu rar sm to tvl ty wls
  Timoric: tdt tet
Dravidian
  South-Dravidian: kn kfa ml ta tcy
  South-Central-Dravidian: gon te
  North-Dravidian: brh kru
Afro-Asiatic
  Semitic: acm acq aeb ajp am apc apd ar ars ary arc arz he mt syr ti tig
  Cushitic: aa om sid so
  Chadic: ha
  Berber: ber kab rif shi taq tmh tzm zgh
  Egyptian: cop
Ta-Ne-Omotic
  Ometo: gmo wal
Atlantic-Congo
  Bantu: bem cce cjk cgg dua fan guz hz kam kg ki kj kmb koo ktu lg ln loz lu lua lue lun luy mer ndc nd ng nr ns
    nso ny nyn rn rnd rw seh sn ss st suk sw swc tn toi ts tsc tum umb ve vmw xh xog yao zu
  Yoruboid: yo
  Igboid: ig
  Edoid: bin
  Cross-River: efi ibb
  Tivoid: tiv
  Kwa: ada ak bci fat gaa nzi tw
  Gbe: ee fon
  Gur: dag dga gur kbp mos
  North-Central-Atlantic: ff fuv fuf fub knf srr wo
  Mel: tem
  Ubangi: sg zne
Mande
  Western-Mande: bm dyu kpe men mnk sus vai
Nilotic
  Western-Nilotic: ach adh alz dik din luo nus shk
  Eastern-Nilotic: mas teo tuv
  Southern-Nilotic: kln
Saharan
  Western-Saharan: kr knc
Songhay
  Songhay: dje hmb ses
Kartvelian
  Georgian-Zan: ka lzz xmf
  Svan: sva
Nakh-Daghestanian
  Nakh: ce inh
  Avar-Andic-Tsezic: av
  Lezgic: lez tab rut
  Dargwa: dar
  Lak: lbe
Abkhaz-Adyge
  Abkhaz: ab abq
  Circassian: ady kbd
Basque
  Basque: eu
Eskimo-Aleut
  Inuit: ik iu kl
  Yupik: esu
Algic
  Algonquian: cr crk mic oj
Athabaskan-Eyak-Tlingit
  Athabaskan: dgr gwi nv
Iroquoian
  Iroquoian: chr moh
Siouan
  Siouan: dak lkt
Uto-Aztecan
  Aztecan: nah nch ncj nhe nhn
Mayan
  Yucatecan: yua
  Quichean: cak kek quc
  Cholan-Tzeltalan: ctu tzh tzo
  Mamean: mam
Otomanguean
  Oto-Pamean: ote
  Zapotecan: zai zap
Quechuan
  Quechuan: qu quz qvi
Aymaran
  Aymaran: ay
Tupian
  Tupi-Guarani: gn
Arawakan
  Arawakan: cab cni guc
Araucanian
  Araucanian: arn
Chibchan
  Chibchan: cuk
Constructed
  Constructed: eo ia ie io jbo nov vo
"""


def _table() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    family = branch = ""
    for line in _FAMILIES.strip("\n").split("\n"):
        if not line.startswith(" "):
            family = line
            continue
        # A row that goes on in the next line has no name there.
        name, colon, codes = line.strip().rpartition(": ")
        branch = name if colon else branch
        found |= dict.fromkeys(codes.split(), (family, branch))
    return found


TABLE = _table()
"""Family and branch of each language, by its code as `languages.parse` writes it."""


def family(code: str, level: str = "branch") -> str:
    """The family of a language, or its branch; script and region of its code aside."""
    parsed = languages.parse(code)
    names = TABLE.get(parsed.language) if parsed else None
    if names is None:
        raise CorpusError(
            f"{code}: no family of this language is known; name the groups by `groups: {{kind: explicit, …}}`"
        )
    return names[0] if level == "family" else names[1]


def teller(silos: recipe.Silos) -> Callable[[str, str], str]:
    """What tells the families of a recipe's languages: of invented ones the recipe, of all others the table."""

    def tell(code: str, level: str) -> str:
        own = toy.family(silos, code) if isinstance(silos, recipe.ToySilos) else None
        return own or family(code, level)

    return tell
