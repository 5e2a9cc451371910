"""TransformerLens with our weights, through its bridge to Hugging Face's GPT-2."""

from tokenizers import Tokenizer, models
from transformer_lens import TransformerBridge
from transformers import PreTrainedTokenizerFast

from clearhead.model.transformer import Transformer
from peers import HuggingFace


def to_transformer_lens(net: Transformer) -> TransformerBridge:
    """The same model in TransformerLens, with the one-word tokenizer that it requires."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<end>": 0}, "<end>")), eos_token="<end>"
    )
    model = TransformerBridge.boot_transformers(
        "gpt2", hf_model=HuggingFace(net).model.eval(), tokenizer=tokenizer
    )
    return model.eval()
