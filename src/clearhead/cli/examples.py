"""The start page, and the examples at the end of each command's help."""

FIRST_COMMANDS = {
    "clearhead demo": "look inside a model in the browser",
    'clearhead generate story "Once upon a time"': "generate text",
    'clearhead translate en-de "Where is the station?"': "translate to German",
}

EXAMPLES = {
    "demo": ("clearhead demo",),
    "explore": (
        "clearhead explore",
        'clearhead explore story --text "Lily gave Tim her ball. He"',
        "clearhead explore story --output page.html",
    ),
    "generate": (
        'clearhead generate story "Once upon a time" --max-tokens 120 --temperature 0.7',
        'clearhead generate story "The dog" --n 3 --seed 7',
        'clearhead generate story "One day" --temperature 0 --logprobs 3',
        'clearhead generate story "Once upon a time there was a" --temperature 0 --ablate-head 0.2',
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
        "clearhead fill fill --input masked.txt --json",
        'clearhead fill google-bert/bert-base-uncased "The [MASK] sat on the mat."',
    ),
    "classify": (
        'clearhead classify mood "A warm, funny film with a heart."',
        "clearhead classify digits digit.png",
        "clearhead classify run/best --input reviews.txt --json",
    ),
    "embed": (
        'clearhead embed story "A little cat sat on the mat."',
        "clearhead embed sentences --input sentences.txt --output vectors.npy",
    ),
    "score": (
        'clearhead score story "The cat sat on the mat."',
        "clearhead score story --input sentences.txt --json",
    ),
    "see": (
        'clearhead see story "Lily gave Tim her ball. He" --layer 1 --head 1',
        'clearhead see story "Lily gave Tim her ball. He" --find-head He:Tim',
        'clearhead see story "a fluffy blue creature" --what simple-attention',
        "clearhead see story --find-head pronouns",
        'clearhead see fill "I walk my dog every day" --what phrase-shift '
        '--shifted "every single day I walk my dog"',
        'clearhead see fill mole --what context --sentence "take a biopsy of the mole" '
        '--sentence "one mole of carbon dioxide"',
        'clearhead see story "Once upon a" --what lens --output lens.png',
        'clearhead see story "The little girl fell. Mom helped" '
        '--patch-from "The little boy fell. Mom helped"',
        'clearhead see en-de "Der Hund ist müde." --source "The dog is tired." --what cross',
    ),
    "softmax": (
        'clearhead softmax "6 -5 4 1.5 9.9" --temperature 1 --temperature 10',
        'clearhead softmax "sat=3 ran=1 <pad>=-inf"',
    ),
    "vectors": (
        'clearhead vectors words "king - man + woman"',
        'clearhead vectors words "queen - king = woman - man"',
        'clearhead vectors words --direction "cat:cats dog:dogs" --words "students teacher apples"',
    ),
    "models": (
        "clearhead models",
        "clearhead models story",
        "clearhead models story --parameters",
    ),
    "get": ("clearhead get", "clearhead get smollm2-135m-instruct"),
    "export": ("clearhead export en-de en-de-for-ctranslate2 --format ctranslate2",),
    "serve": (
        "clearhead serve story --port 8000",
        "clearhead serve story en-de --page --read-only",
    ),
    "train": (
        "clearhead train lm-small --data.train texts/ --train.max_steps 2000 --output run",
        "clearhead train mt-small --data.train train.en train.de --data.valid dev.en dev.de",
        "clearhead train vectors --data.train texts/ --output vectors",
    ),
    "compare": (
        "clearhead compare lm-small --vary model.position=learned,rotary --seeds 5 "
        "--data.train texts/ --output positions",
        "clearhead compare positions --baseline position=rotary",
    ),
    "evaluate": (
        "clearhead evaluate story --data stories.txt",
        "clearhead evaluate en-de --data test.en test.de --num-beams 5",
        "clearhead evaluate run/best --data reviews.csv --data.label_column stars "
        "--confusion-matrix confusion.png",
    ),
    "verify": (
        "clearhead verify story",
        "clearhead verify tiny-decoder --model.position rotary",
        "clearhead verify out/hf --against transformers",
    ),
    "check": (
        "clearhead check --template mine.py",
        "clearhead check mine.py",
        "clearhead check mine.py --only attention --only layer_norm",
    ),
    "presets": ("clearhead presets", "clearhead presets lm-small --model.n_layers 6 > run.toml"),
    "bench": ("clearhead bench", "clearhead bench forward"),
    "tokenizer": ('clearhead tokenizer show story "a fluffy blue creature"',),
    "tokenizer train": (
        "clearhead tokenizer train texts/ --vocab-size 8192 --output tokenizer.json",
    ),
    "tokenizer show": (
        'clearhead tokenizer show story "a fluffy blue creature"',
        "clearhead tokenizer show en-de",
    ),
}


def start_page(version: str) -> str:
    """What `clearhead` without a command prints."""
    from clearhead.weights.bundled import bundled_models

    names = ", ".join(bundled_models()) or "none"
    width = max(map(len, FIRST_COMMANDS))
    commands = "\n".join(
        f"  {command:<{width}}   {description}" for command, description in FIRST_COMMANDS.items()
    )
    return f"""clearhead {version}: read, train, inspect and edit Transformers

Bundled models: {names} (details: clearhead models)

Try first:

{commands}

clearhead --help lists all commands.
"""


def example_text(command: str) -> str:
    """The examples of a command; \\b keeps click from wrapping them."""
    examples = EXAMPLES[command]
    title = "Examples:" if len(examples) > 1 else "Example:"
    return "\n".join(["\b", title, *(f"  {example}" for example in examples)])
