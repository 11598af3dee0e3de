"""Units of measurement: the signs after a number, and their names."""

from __future__ import annotations

_NAMES = {
    "kilometer": "km", "meter": "m", "centimeter": "cm", "millimeter": "mm", "nanometer": "nm",
    "mile": "mi", "yard": "yd yds", "piece": "pc pcs",
    "kilogram": "kg", "gram": "g", "milligram": "mg", "microgram": "mcg ug", "ounce": "oz",
    "pound": "lb lbs", "tablespoon": "tbsp tbsps Tbsp Tbs", "teaspoon": "tsp tsps",
   "liter": "l L", "milliliter": "ml mL", "gallon": "gal", "quart": "qt qts",
    "fluid ounce": "fl&oz fl.&oz", "point": "pts", "kilohertz": "kHz",
    "megahertz": "MHz", "gigahertz": "GHz", "hertz": "Hz", "kilobyte": "KB kB", "megabyte": "MB",
    "gigabyte": "GB", "terabyte": "TB", "watt": "W", "kilowatt": "kW", "megawatt": "MW",
    "kilowatt hour": "kWh", "volt": "V", "millivolt": "mV", "milliamp hour": "mAh",
    "millisecond": "ms", "second": "sec secs s", "minute": "min mins", "hour": "hr hrs h",
    "decibel": "dB", "pixel": "px", "calorie": "cal", "kilocalorie": "kcal", "kilojoule": "kJ",
    "square meter": "m² m2 sqm", "square kilometer": "km² km2", "square centimeter": "cm² cm2",
    "square mile": "mi²", "cubic meter": "m³ m3", "cubic centimeter": "cm³ cm3", "degree": "° deg",
    "nanogram": "ng", "microliter": "uL", "micrometer": "um", "deciliter": "dL dl",
    "hectopascal": "hPa", "kilopascal": "kPa", "nautical mile": "nmi", "amp hour": "Ah",
    "watt hour": "Wh", "megapixel": "MP", "international unit": "IU", "millimole": "mmol",
    "milliequivalent": "mEq", "horsepower": "hp",
    "kilohm": "k&ohm", "megohm": "M&ohm", "milliamp": "mA", "kilovolt": "kV",
    "microfarad": "uF", "nanofarad": "nF", "picofarad": "pF", "millihenry": "mH",
    "newton meter": "Nm", "megapascal": "MPa", "gigapascal": "GPa", "millibar": "mbar mb",
    "gigawatt": "GW", "megawatt hour": "MWh", "gigawatt hour": "GWh", "megajoule": "MJ",
    "gibibyte": "GiB", "mebibyte": "MiB", "kibibyte": "KiB", "petabyte": "PB",
    "month": "mo mos", "week": "wk wks", "knot": "kt kts", "light year": "ly",
}  # fmt: skip
_RATES = {
    "millimole per liter": "mmol/L", "milliequivalent per liter": "mEq/L",
    "gram per deciliter": "g/dL", "milligram per kilogram": "mg/kg",
    "milligram per milliliter": "mg/mL mg/ml", "microgram per milliliter": "mcg/mL ug/mL",
    "nanogram per milliliter": "ng/mL", "international unit per milliliter": "IU/mL",
    "milligram per liter": "mg/L", "gram per liter": "g/L", "kilojoule per mole": "kJ/mol",
    "kilogram per square meter": "kg/m² kg/m2", "microgram per cubic meter": "ug/m³ ug/m3",
    "gigabit per second": "Gb/s Gbit/s", "megabit per second": "Mb/s Mbit/s",
    "gigabyte per second": "GB/s", "kilobyte per second": "KB/s kB/s",
    "kilometer per second": "km/s", "gram per mole": "g/mol",
    "liter per minute": "L/min", "newton per meter": "N/m", "watt per square meter": "W/m²",
    "milli international unit per liter": "mIU/L", "milligram per day": "mg/d",
}  # fmt: skip
#: Units without a plural in s.
_SET = {
    "°C": ("degree celsius", "degrees celsius"),
    "°F": ("degree fahrenheit", "degrees fahrenheit"),
    "deg C": ("degree celsius", "degrees celsius"),
    "deg F": ("degree fahrenheit", "degrees fahrenheit"),
    "ft": ("foot", "feet"),
    "inHg": ("inch of mercury", "inches of mercury"),
    "sq mi": ("square mile", "square miles"),
    "ft-lb": ("foot pound", "foot pounds"),
    "ft-lbs": ("foot pound", "foot pounds"),
    "cu ft": ("cubic foot", "cubic feet"),
    "ft³": ("cubic foot", "cubic feet"),
    "ppm": ("part per million", "parts per million"),
    "ppb": ("part per billion", "parts per billion"),
    "lb-ft": ("pound foot", "pound feet"),
    "sq ft": ("square foot", "square feet"),
    "sq-ft": ("square foot", "square feet"),
    "sq. ft": ("square foot", "square feet"),
    "ft²": ("square foot", "square feet"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "mpg": ("mile per gallon", "miles per gallon"),
    "mg/dL": ("milligram per deciliter", "milligrams per deciliter"),
    "psi": ("pee ess eye", "pee ess eye"),
    "m/s": ("meter per second", "meters per second"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "MB/s": ("megabyte per second", "megabytes per second"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "bpm": ("beat per minute", "beats per minute"),
    "fps": ("frame per second", "frames per second"),
    "dpi": ("dot per inch", "dots per inch"),
    "hertz": ("hertz", "hertz"),
}
_NO_PLURAL = ("hertz", "horsepower")
#: sign -> (singular, plural)
UNITS: dict[str, tuple[str, str]] = (
    {
        sign.replace("&", " "): (name, name if name.endswith(_NO_PLURAL) else name + "s")
        for name, signs in _NAMES.items()
        for sign in signs.split()
    }
    | {
        sign: (name, name.replace(" per ", "s per "))
        for name, signs in _RATES.items()
        for sign in signs.split()
    }
    | _SET
)
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
