"""Abbreviations that end in a full stop without ending a sentence; lower case, the last full stop left out.

Put together by hand for this project: common in English, with a few of German, French, Spanish and Hindi.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name or another word always follows.
NEVER_LAST = _words(
    """
    mr mrs ms messrs mme mmes mlle mssrs dr drs prof profs rev revd hon pres gov sen rep st ste mt ft gen col lt maj capt
    cpt cmdr comdr adm sgt cpl pvt pte brig insp supt det fr msgr esqs viz vs cf approx ca circa incl esp resp ed eds
    trans repr hr frl bzw bspw vgl evtl ggf inkl sra srta dra dna vda lic ing arq mgr ald atty amb bp
    e.g i.e z.b d.h u.a p.ex p.ej
    \u0921\u0949 \u092a\u094d\u0930\u094b \u092a\u0902 \u0936\u094d\u0930\u0940
    """
)

# A number follows: "No. 5", "Fig. 2", "Vol. IV". Without one the word is a word, or ends its sentence.
BEFORE_NUMBERS = _words(
    """
    no nos nr num fig figs sec sect vol vols ch chap chaps p pp pg art arts eq eqs op bk par para pt pts ver vs tab
    app cap lib fol ex col cols line lines nn n\u00ba n\u00b0 jan feb mar apr jun jul aug sep sept oct nov dec
    """
)

# Both happen: the sentence ends here only if the next word is one that begins sentences.
SOMETIMES_LAST = _words(
    """
    etc inc ltd co corp bros jr sr esq al ibid dept univ assn est min max ave blvd rd tel ext mass calif conn penn
    a.m p.m u.s u.k u.n u.s.a u.s.s.r e.u d.c ph.d b.a m.a m.d b.c a.d b.c.e usw
    """
)

# The words that most often begin an English sentence and are seldom names.
SENTENCE_STARTERS = _words(
    """
    the a an this that these those it its he she they we i you his her their our my your there here in on at by for
    from of to with as after before when while where since until if but and or so yet nor then thus however although
    though because what who which why how not no yes now once some many most all each every both another other one two
    three it's he's she's i'm that's there's don't let's did do does is was were are has had have can could will would
    should may might must during under over among between despite unlike besides also even only perhaps instead
    meanwhile moreover nevertheless still again today yesterday tomorrow soon later
    """
)
