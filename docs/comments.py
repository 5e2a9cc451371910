"""Use the comment behind a field as its docstring in the reference."""

import griffe


class Comments(griffe.Extension):
    """Turn trailing comments of dataclass fields into docstrings."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: object) -> None:
        """Called by griffe for each attribute."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            comment = attr.source.partition("  # ")[2].partition("\n")[0]
            attr.docstring = griffe.Docstring(comment, parent=attr) if comment else None
