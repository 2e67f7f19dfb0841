"""What a release of Hocket consists of: the source package and the wheel."""
