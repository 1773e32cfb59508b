"""Charts, each defined once as Vega-Lite and rendered without a network (``style.render``)."""
