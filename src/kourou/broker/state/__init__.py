"""Tables of a broker, most of which are files in config/ (state_file): what is there and who is connected."""
