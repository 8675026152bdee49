"""The models: stock names and state-dict keys, exact losses."""
