"""What a comment says of a field, the reference says too: mkdocstrings reads only docstrings by itself."""

import griffe


class Comments(griffe.Extension):
    """The comment behind a field becomes its docstring, where it has none."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **given: object) -> None:
        """Called for each attribute that was found."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            comment = attr.source.partition("  # ")[2].partition("\n")[0]
            attr.docstring = griffe.Docstring(comment, parent=attr) if comment else None
