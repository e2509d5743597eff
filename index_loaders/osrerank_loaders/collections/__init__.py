"""Published collections, a module each: how their files are read and searched."""
