"""Recognises places in content of any author: by the usual names of coordinates, and by how they look in running text.
`sanitise` decides what to do about it.

Recognition follows common habits and is never complete: it does not see a geohash in a text, nor the name of a city. In
doubt a text counts as one that reveals a place, because a reader under StripGeo should get too little rather than too
much.
"""

import re

_WORDS = frozenset(
    {
        *(
            "lat",
            "lon",
            "lng",
            "latitude",
            "latitudes",
            "longitude",
            "longitudes",
            "altitude",
            "altitudes",
            "elevation",
        ),
        *("latlng", "latlon", "latlong", "lnglat", "lonlat", "longlat", "geo", "gps", "coord", "coords"),
        *("coordinate", "coordinates", "position", "positions", "location", "locations", "waypoint", "waypoints"),
        *("geolocation", "geopoint", "geohash", "geojson", "geofence"),
    }
)
# Too common as parts of other names.
_WHOLE_NAMES = frozenset({"long", "alt", "loc", "pos"})
_BEGINNINGS = ("gps", "latlng", "latlon", "geoloc", "geopoint", "geohash", "geojson", "latitude", "longitude")
_ENDINGS = ("latitude", "longitude", "altitude", "coordinates", "coords", "geolocation", "latlng", "latlon", "gps")
# The words of a name such as gps_latitude, startLat or GPSLatitude.
_NAME_WORDS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD = "|".join(sorted(_WORDS, key=len, reverse=True))
_DEGREES = r"[+-]?[0-9]{1,3}\.[0-9]"
# Every repetition is bounded or stands behind a mark that cannot begin inside it, so that a search takes linear time.
_TEXT = re.compile(
    "|".join(
        (
            # lat: 48, "gps_latitude": "48, geo:48, coordinates = [48
            rf"(?<![a-z])(?:{_WORD})(?:[_-]\w{{1,16}})?\W{{0,6}}[:=][\s\"'\\\[({{+-]{{0,12}}[0-9]",
            # latitude 48.2
            rf"(?<![a-z])(?:lat|lon|lng|latitude|longitude|altitude)\.?\s{{1,3}}(?:is\s)?{_DEGREES}",
            # 48.208, 16.373: two numbers with at least three decimals side by side
            rf"(?<![0-9.]){_DEGREES}[0-9]{{2,17}}(?![0-9])°?\s{{0,3}}[,;/\s]\s{{0,3}}{_DEGREES}[0-9]{{2}}",
            # https://maps.example/@48.2,16.4
            rf"@{_DEGREES}[0-9]{{0,17}},{_DEGREES}",
            # 48°12'N, 48.2° N, 48.2N 16.4E
            r"[0-9]\s?°\s?(?:[0-9]|[NSEW]\b)",
            rf"{_DEGREES}[0-9]{{0,17}}\s?[NS]\b\W{{0,4}}{_DEGREES}[0-9]{{0,17}}\s?[EW]\b",
            # POINT (16.4 48.2), $GPGGA
            r"\b(?:POINT|LINESTRING|POLYGON)\s?Z?M?\s?\(\s?\(?\s?[+-]?[0-9]",
            r"\$G[PNLA](?:GGA|RMC|GLL)",
        )
    ),
    re.IGNORECASE,
)


def names_place(name: str) -> bool:
    """Whether a field of this name reveals a place."""
    plain = "".join(filter(str.isalpha, name)).lower()
    if plain in _WHOLE_NAMES or plain.startswith(_BEGINNINGS) or plain.endswith(_ENDINGS):
        return True
    return any(word.lower() in _WORDS for word in _NAME_WORDS.findall(name))


def tells_place(text: str) -> bool:
    """Whether a text contains coordinates."""
    return _TEXT.search(text) is not None
