"""Units of measurement: the signs after a number, and their names."""

from __future__ import annotations

import re

_NAMES = {
    "kilometer": "km", "meter": "m", "centimeter": "cm", "millimeter": "mm", "nanometer": "nm",
    "mile": "mi", "yard": "yd yds", "piece": "pc pcs", "kilogram": "kg", "gram": "g",
    "milligram": "mg", "microgram": "mcg ug", "ounce": "oz", "pound": "lb lbs",
    "tablespoon": "tbsp tbsps Tbsp Tbs", "teaspoon": "tsp tsps", "liter": "l L",
    "milliliter": "ml mL", "gallon": "gal", "quart": "qt qts", "fluid ounce": "fl&oz fl.&oz",
    "point": "pts", "kilohertz": "kHz", "megahertz": "MHz", "gigahertz": "GHz", "hertz": "Hz hertz",
    "kilobyte": "KB kB", "megabyte": "MB", "gigabyte": "GB gb", "terabyte": "TB tb", "watt": "W",
    "kilowatt": "kW", "megawatt": "MW", "kilowatt hour": "kWh", "volt": "V", "millivolt": "mV",
    "milliamp hour": "mAh", "millisecond": "ms", "second": "sec secs s", "minute": "min mins",
    "hour": "hr hrs h", "decibel": "dB", "pixel": "px", "calorie": "cal", "kilocalorie": "kcal",
    "kilojoule": "kJ", "square meter": "m² m2 sqm", "square kilometer": "km² km2",
    "square centimeter": "cm² cm2", "square mile": "mi² sq&mi", "cubic meter": "m³ m3",
    "cubic centimeter": "cm³ cm3", "degree": "° deg", "nanogram": "ng", "microliter": "uL",
    "micrometer": "um", "deciliter": "dL dl", "hectopascal": "hPa", "kilopascal": "kPa",
    "nautical mile": "nmi", "amp hour": "Ah", "watt hour": "Wh", "megapixel": "MP",
    "international unit": "IU", "millimole": "mmol", "milliequivalent": "mEq", "horsepower": "hp",
    "kilohm": "k&ohm", "megohm": "M&ohm", "milliamp": "mA", "kilovolt": "kV", "microfarad": "uF",
    "nanofarad": "nF", "picofarad": "pF", "millihenry": "mH", "newton meter": "Nm",
    "megapascal": "MPa", "gigapascal": "GPa", "millibar": "mbar mb", "gigawatt": "GW",
    "megawatt hour": "MWh", "gigawatt hour": "GWh", "megajoule": "MJ", "gibibyte": "GiB",
    "mebibyte": "MiB", "kibibyte": "KiB", "petabyte": "PB", "month": "mo mos", "week": "wk wks",
    "knot": "kt kts", "light year": "ly", "degree celsius": "°C deg&C",
    "degree fahrenheit": "°F deg&F", "foot": "ft", "square foot": "sq&ft sq-ft sq.&ft ft²",
    "cubic foot": "cu&ft ft³", "foot pound": "ft-lb ft-lbs", "pound foot": "lb-ft",
    "pee ess eye": "psi",
    # rates with a sign of their own, or of units that are read in no other place
    "kilometer per hour": "kph", "mile per hour": "mph", "mile per gallon": "mpg",
    "part per million": "ppm", "part per billion": "ppb", "kilobit per second": "kbps",
    "megabit per second": "Mbps Mb/s Mbit/s", "gigabit per second": "Gbps Gb/s Gbit/s",
    "revolution per minute": "rpm", "beat per minute": "bpm", "frame per second": "fps",
    "dot per inch": "dpi", "kilojoule per mole": "kJ/mol", "gram per mole": "g/mol",
    "newton per meter": "N/m", "milli international unit per liter": "mIU/L",
    "milligram per day": "mg/d",
}  # fmt: skip
_RATES = """
    mmol/L mEq/L g/dL mg/dL mg/kg mg/mL mg/ml mcg/mL ug/mL ng/mL IU/mL mg/L g/L kg/m² kg/m2 ug/m³
    ug/m3 GB/s MB/s KB/s kB/s km/s km/h m/s L/min W/m² kg/m³ kg/m3 g/cm³ g/cm3
"""
#: Units that are written in any case: "5 kwh", "12 KG", "60 hz". Others would be states, acronyms,
#: or other units in another case: MI, SEC, GPA, mW.
_ANY_CASE = """
    kWh MWh GWh kW Hz kHz MHz GHz kg km lb lbs oz ml mAh kcal kJ kbps Mbps Gbps fps dpi bpm psi ppm
    mpg kPa hPa
"""
_NO_PLURAL = ("hertz", "horsepower", "eye")


def _plural(name: str) -> str:
    """Return the plural of a unit, in the first word of "degree celsius" and of a rate."""
    if name.endswith(_NO_PLURAL):
        return name
    if name.endswith("foot"):
        return f"{name.removesuffix('foot')}feet"
    return re.sub("( per .*| celsius| fahrenheit|)$", r"s\1", name, count=1)


#: sign -> (singular, plural)
UNITS: dict[str, tuple[str, str]] = {
    sign.replace("&", " "): (name, _plural(name))
    for name, signs in _NAMES.items()
    for sign in signs.split()
} | {"inHg": ("inch of mercury", "inches of mercury")}
for _rate in _RATES.split():
    _of, _per = (UNITS[sign] for sign in _rate.split("/"))
    UNITS[_rate] = (f"{_of[0]} per {_per[0]}", f"{_of[1]} per {_per[0]}")
for _sign in _ANY_CASE.split():
    for _written in (_sign.lower(), _sign.upper(), _sign.capitalize()):
        UNITS.setdefault(_written, UNITS[_sign])

#: Units after a slash only after a number: "$25/ticket", but "parent/child".
PER_THING = {
    "serving": "serving", "guest": "guest", "ticket": "ticket", "child": "child",
    "adult": "adult", "head": "head", "tablet": "tablet", "capsule": "capsule", "dose": "dose",
    "quarter": "quarter", "call": "call", "kWh": "kilowatt hour", "GB": "gigabyte",
    "km": "kilometer", "mi": "mile", "oz": "ounce", "bbl": "barrel",
}  # fmt: skip
#: All units after a slash, in a price or a rate.
PER = {
    "mo": "month", "month": "month", "hr": "hour", "hour": "hour", "h": "hour", "day": "day",
    "wk": "week", "week": "week", "yr": "year", "year": "year", "min": "minute",
    "minute": "minute", "sec": "second", "second": "second", "s": "second", "user": "user",
    "person": "person", "night": "night", "kg": "kilogram", "lb": "pound",
    "gal": "gallon", "unit": "unit", "item": "item", "seat": "seat",
} | PER_THING  # fmt: skip
