"""`clearhead` alone: what is here, and what to try first."""

TRIES = {
    "clearhead demo": "opens a page on which a model thinks before your eyes",
    'clearhead generate story "Once upon a time"': "writes on",
    'clearhead translate en-de "Where is the station?"': "says it in German",
}
WIDE = max(map(len, TRIES))


def greeting(version: str) -> str:
    from clearhead.weights import bundled

    here = ", ".join(bundled.names()) or "none"
    tries = "\n".join(f"  {command:<{WIDE}}   {says}" for command, says in TRIES.items())
    return f"""clearhead {version} — the Transformer of the lectures, to read, train, watch and edit

Models that came with it: {here} (clearhead models tells more).

Three commands to try first:

{tries}

clearhead --help lists all commands.
"""
