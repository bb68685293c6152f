"""How normalisations are spelled: rules towards one pattern (`norm`), and what misses it (`misses`)."""
