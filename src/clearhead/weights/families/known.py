"""Every published family, those that are tried first when a model of our own is written standing first."""

from clearhead.weights.families.bert import BERT, ROFORMER
from clearhead.weights.families.family import Family
from clearhead.weights.families.gpt2 import GPT2
from clearhead.weights.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from clearhead.weights.families.marian import MARIAN
from clearhead.weights.families.t5 import T5
from clearhead.weights.families.vit import VIT
from clearhead.weights.families.whisper import WHISPER

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, BERT, ROFORMER, MARIAN, T5, VIT, WHISPER)
