"""`clearhead` alone: what is here, and what to try first."""


# ---- start: `clearhead` alone: what is here, and what to try first.

FIRST_COMMANDS = {
    "clearhead demo": "opens a page on which a model thinks before your eyes",
    'clearhead generate story "Once upon a time"': "writes on",
    'clearhead translate en-de "Where is the station?"': "says it in German",
}
WIDE = max(map(len, FIRST_COMMANDS))


def greeting(version: str) -> str:
    from clearhead.weights.model_cards import bundled_models

    here = ", ".join(bundled_models()) or "none"
    tries = "\n".join(f"  {command:<{WIDE}}   {says}" for command, says in FIRST_COMMANDS.items())
    return f"""clearhead {version} — the Transformer of the lectures, to read, train, watch and edit

Models that came with it: {here} (clearhead models tells more).

Three commands to try first:

{tries}

clearhead --help lists all commands.
"""


# ---- examples: What to type: examples of every command, which --help shows at its end.

EXAMPLES = {
    "demo": ("clearhead demo",),
    "explore": (
        "clearhead explore",
        'clearhead explore story --text "a fluffy blue creature"',
        "clearhead explore story --out page.html",
    ),
    "generate": (
        'clearhead generate story "Once upon a time" --max-tokens 120 --temperature 0.7',
        'clearhead generate story "The dog" --n 3 --seed 7',
        'clearhead generate story "One day" --temperature 0 --logprobs 3',
        'clearhead generate story "Once upon a time there was a" --temperature 0 --without 0.2',
    ),
    "chat": (
        "clearhead chat story",
        'clearhead chat smollm2-135m-instruct --system "You are an apple."',
    ),
    "translate": (
        'clearhead translate en-de "Where is the station?"',
        'clearhead translate en-de "The dog is tired." --align -1',
        "clearhead translate en-de --input english.txt --output german.txt",
    ),
    "fill": (
        'clearhead fill fill "The king and the [MASK] had a daughter."',
        "clearhead fill fill --input gaps.txt --json",
        'clearhead fill google-bert/bert-base-uncased "The [MASK] sat on the mat."',
    ),
    "classify": (
        'clearhead classify mood "A warm, funny film with a heart."',
        "clearhead classify digits digit.png",
        "clearhead classify run/best --input reviews.txt --json",
    ),
    "embed": (
        'clearhead embed story "A little cat sat on the mat."',
        "clearhead embed minilm-l6 --input sentences.txt --output vectors.npy",
    ),
    "score": (
        'clearhead score story "The cat sat on the mat."',
        "clearhead score story --input sentences.txt --json",
    ),
    "see": (
        'clearhead see story "a fluffy blue creature" --layer 2 --head 2',
        'clearhead see story "a fluffy blue creature" --find creature fluffy',
        'clearhead see story "Once upon a" --what lens --out lens.png',
        'clearhead see story "The little girl fell. Mom helped" --other "The little boy fell. Mom helped"',
        'clearhead see en-de "Der Hund ist müde." --source "The dog is tired." --what cross',
    ),
    "vectors": (
        'clearhead vectors words "king - man + woman"',
        'clearhead vectors words --direction "cat:cats dog:dogs" --words "students teacher apples tree"',
    ),
    "models": ("clearhead models", "clearhead models story"),
    "get": ("clearhead get", "clearhead get smollm2-135m-instruct"),
    "export": ("clearhead export en-de en-de-for-ctranslate2 --format ctranslate2",),
    "serve": (
        "clearhead serve story --port 8000",
        "clearhead serve story en-de --page --read-only",
    ),
    "train": (
        "clearhead train lm-small --data.train texts/ --train.max_steps 2000 --out run",
        "clearhead train mt-small --data.train train.en train.de --data.valid dev.en dev.de",
        "clearhead train vectors --data.train texts/ --train.width 100 --out vectors",
    ),
    "compare": (
        "clearhead compare lm-small --vary model.position=learned,rotary --seeds 5 --data.train texts/ --out positions",
        "clearhead compare positions --against position=rotary",
    ),
    "evaluate": (
        "clearhead evaluate story --data stories.txt",
        "clearhead evaluate en-de --data test.en test.de --beam 5",
        "clearhead evaluate run/best --data reviews.csv --data.text_column text --data.label_column stars --confusion mixed-up.png",
    ),
    "verify": ("clearhead verify story", "clearhead verify tiny-decoder --model.position rotary"),
    "presets": ("clearhead presets", "clearhead presets lm-small --model.n_layers 6 > run.toml"),
    "bench": ("clearhead bench", "clearhead bench forward"),
    "tokenizer": ('clearhead tokenizer show story "a fluffy blue creature"',),
    "tokenizer train": ("clearhead tokenizer train texts/ --size 8192 --out tokenizer.json",),
    "tokenizer show": (
        'clearhead tokenizer show story "a fluffy blue creature"',
        "clearhead tokenizer show en-de",
    ),
}


def examples(command: str) -> str:
    """The end of a command's help; \\b keeps its lines as they are."""
    lines = EXAMPLES[command]
    return "\n".join(["\b", f"Example{'s' * (len(lines) > 1)}:", *(f"  {line}" for line in lines)])
