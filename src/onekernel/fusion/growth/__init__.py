"""How a chain grows from one normalisation: `group` decides, `layout` places, `emit` writes it down."""
