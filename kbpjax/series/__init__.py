"""Time series: states and observations at successive times, filtered, smoothed, forecast and drawn as paths.

One model, learned from series of known states, serves series of any length. All answers are a `kbpjax.Posterior`, which
every summary takes.
"""

from kbpjax.series.filtering import Filtered, filter, update
from kbpjax.series.learning import fit
from kbpjax.series.model import SeriesModel, State, start
from kbpjax.series.smoothing import forecast, sample_paths, smooth

__all__ = ["Filtered", "SeriesModel", "State", "filter", "fit", "forecast", "sample_paths", "smooth", "start", "update"]
