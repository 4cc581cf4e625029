"""Tables with holes: sensors, climate and mixed tables of packages, filled by several imputers."""
