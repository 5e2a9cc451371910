"""TransformerLens with our weights: the same function as one of its bridges to a GPT-2 of Hugging Face's."""

from tokenizers import Tokenizer, models
from transformer_lens import TransformerBridge
from transformers import PreTrainedTokenizerFast

from clearhead.model.transformer import Transformer
from peers import HuggingFace


def hooked(net: Transformer) -> TransformerBridge:
    """It wants a tokenizer, though it is given ids: one with a single word."""
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<end>": 0}, "<end>")), eos_token="<end>"
    )
    theirs = TransformerBridge.boot_transformers(
        "gpt2", hf_model=HuggingFace(net).model.eval(), tokenizer=words
    )
    return theirs.eval()
