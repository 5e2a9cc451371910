"""Beam search with its rules as keywords."""

from clearhead.generate import beam_search as module
from clearhead.generate.beam_search import BeamRules


def beam_search(
    net,
    prompt,
    *,
    source=None,
    source_segment_ids=None,
    n_best=1,
    prefix=None,
    return_tree=False,
    **rules,
):
    return module.beam_search(
        net,
        BeamRules(next(net.parameters()).device, **rules),
        prompt,
        source=source,
        source_segment_ids=source_segment_ids,
        n_best=n_best,
        prefixes=prefix,
        return_tree=return_tree,
    )
