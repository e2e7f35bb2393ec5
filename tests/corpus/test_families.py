"""The table of families: whole, consistent, and an error that names the way out."""

from __future__ import annotations

import re

import pytest

from fedmt import recipe
from fedmt.corpus import families, languages, toy
from fedmt.corpus.packages import PRESETS
from fedmt.errors import CorpusError

# As the engines' own lists have them.
MBART50 = """
ar cs de en es et fi fr gu hi it ja kk ko lt lv my ne nl ro ru si tr vi zh af az bn fa he hr id ka km mk ml mn mr pl
ps pt sv sw ta te th tl uk ur xh gl sl
"""
M2M100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id
ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si
sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
NLLB200 = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn als_Latn amh_Ethi apc_Arab arb_Arab ars_Arab
ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn
ben_Beng bho_Deva bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn
cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn
fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gaz_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn
hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn
jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor kaz_Cyrl kbp_Latn kea_Latn khk_Cyrl khm_Khmr
kik_Latn kin_Latn kir_Cyrl kmb_Latn kmr_Latn knc_Arab knc_Latn kon_Latn kor_Hang lao_Laoo lij_Latn lim_Latn lin_Latn
lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn luo_Latn lus_Latn lvs_Latn mag_Deva mai_Deva mal_Mlym mar_Deva
min_Latn mkd_Cyrl mlt_Latn mni_Beng mos_Latn mri_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn nus_Latn
nya_Latn oci_Latn ory_Orya pag_Latn pan_Guru pap_Latn pbt_Arab pes_Arab plt_Latn pol_Latn por_Latn prs_Arab quy_Latn
ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Olck scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn
snd_Arab som_Latn sot_Latn spa_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml taq_Latn
tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi tpi_Latn tsn_Latn tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn
tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn
yue_Hant zho_Hans zho_Hant zsm_Latn zul_Latn
"""


@pytest.mark.parametrize("codes", [MBART50, M2M100, NLLB200], ids=["mBART-50", "M2M100", "NLLB-200"])
def test_every_language_of_the_large_engines_has_a_family(codes: str) -> None:
    for code in codes.split():
        assert families.family(code, "family")
        assert families.family(code, "branch")


def test_every_language_of_two_letters_and_of_the_presets_has_a_family() -> None:
    members = [one for preset in PRESETS.values() for one in (*preset.silos, *preset.public)]
    codes = {code for code in languages._TWO if len(code) == 2} | {code for one in members for code in one.direction}
    assert [code for code in sorted(codes) if not families.family(code)] == []


@pytest.mark.parametrize(
    ("code", "family", "branch"),
    [
        ("de", "Indo-European", "Germanic"),
        ("lt", "Indo-European", "Baltic"),
        ("fi", "Uralic", "Finnic"),
        ("hu", "Uralic", "Hungarian"),
        ("he", "Afro-Asiatic", "Semitic"),
        ("mt", "Afro-Asiatic", "Semitic"),
        ("zh", "Sino-Tibetan", "Sinitic"),
        ("th", "Tai-Kadai", "Tai"),
        ("vi", "Austroasiatic", "Vietic"),
        ("ja", "Japonic", "Japanesic"),
        ("ko", "Koreanic", "Koreanic"),
        ("eu", "Basque", "Basque"),
        ("sw", "Atlantic-Congo", "Bantu"),
        ("mg", "Austronesian", "Malagasy"),
        ("ht", "Indo-European", "Romance"),
        ("eo", "Constructed", "Constructed"),
    ],
)
def test_languages_stand_where_they_belong(code: str, family: str, branch: str) -> None:
    assert (families.family(code, "family"), families.family(code, "branch")) == (family, branch)


@pytest.mark.parametrize(
    ("variants", "branch"),
    [
        (("pt", "pt-BR", "pt_PT", "por_Latn"), "Romance"),
        (("zh", "zh_Hans", "zh-TW", "zho_Hant", "cmn"), "Sinitic"),
        (("no", "nb", "nn", "nob_Latn", "nn-NO"), "Germanic"),
        (("sr", "sr@latin", "sr-Cyrl-RS", "sh"), "Slavic"),
        (("he", "iw", "heb_Hebr"), "Semitic"),
    ],
)
def test_variants_of_a_language_are_of_its_family(variants: tuple[str, ...], branch: str) -> None:
    assert {families.family(code) for code in variants} == {branch}


def test_the_table_is_consistent() -> None:
    codes = [
        code for line in families._FAMILIES.split("\n") if line[:1] == " " for code in line.rpartition(": ")[2].split()
    ]
    assert len(codes) == len(set(codes)) == len(families.TABLE)
    for code, names in families.TABLE.items():
        parsed = languages.parse(code)
        assert parsed is not None
        assert parsed.language == code, f"{code} is read as {parsed.language}, and never found"
        # They become part of tensors' names.
        assert all(re.fullmatch(r"[A-Za-z][A-Za-z-]*", name) for name in names)
    # A branch's name alone tells its family.
    pairs = set(families.TABLE.values())
    assert len({branch for _, branch in pairs}) == len(pairs)


@pytest.mark.parametrize("code", ["qaa", "tlh", "nonsense", ""])
def test_a_language_that_is_not_there_names_the_way_out(code: str) -> None:
    with pytest.raises(CorpusError, match=rf"^{code}: no family of this language is known; .*kind: explicit"):
        families.family(code)


def test_invented_languages_are_told_by_their_recipe() -> None:
    settings = recipe.ToySilos(source="toy", silos=8, families=4, directions="many")
    tell = families.teller(settings)
    sources = [tell(direction.source, "branch") for direction in toy.directions(settings)]
    assert sources == [f"family-{1 + silo % 4}" for silo in range(8)]
    assert tell("qaa", "family") == tell("qaa", "branch")
    assert tell("de", "branch") == "Germanic"
    with pytest.raises(CorpusError, match=r"^qta: "):
        tell("qta", "branch")
    files = recipe.FileSilo.model_validate({"name": "a", "from": "pt-BR", "to": "de", "data": "x"})
    assert families.teller([files])("pt-BR", "family") == "Indo-European"
