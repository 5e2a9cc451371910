"""Sentences with the word mole in three senses."""

MOLE_SENTENCES = {
    "animal": [
        "the mole dug a tunnel under the garden",
        "a mole is a small animal that lives under the ground",
        "the cat caught a mole in the field",
        "the blind mole came out of its hole at night",
        "American shrew mole",
        "a mole eats worms and insects",
        "we saw a mole and two rabbits near the hedge",
        "the farmer set a trap for the mole",
    ],
    "unit": [
        "one mole of carbon dioxide has a mass of 44 grams",
        "the reaction gives one mole of oxygen for each mole of water",
        "dissolve one mole of salt in a liter of water",
        "one mole of carbon dioxide",
        "the energy per mole of gas is constant",
        "a mole of atoms weighs as many grams as its atomic number",
        "two electrons are released per mole of metal",
        "calculate the volume of one mole of hydrogen",
    ],
    "growth": [
        "take a biopsy of the mole",
        "the doctor removed the mole from her skin",
        "she has a dark mole on her left cheek",
        "the mole on his back began to bleed",
        "a mole that changes its color may be cancer",
        "the surgeon cut out the mole on her arm",
        "his face had a wart and a mole",
        "the patient asked about the mole on her neck",
    ],
}
