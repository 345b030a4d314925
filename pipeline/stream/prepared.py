"""Columns that are built, and handed to the JVM, once a process.

A Column belongs to no frame, but it is made by many calls into the JVM, and so is the list of them that `select` wants.
For the columns of a micro-batch that was a quarter of a second each time; kept, a batch costs one call a step.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, cast

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

Build = Callable[..., Sequence[Column]]
"""A function of hashable arguments that gives the same columns for the same arguments."""


def select(frame: DataFrame, build: Build, *arguments: Hashable) -> DataFrame:
    """`frame.select(*build(*arguments))`."""
    java_frame = cast(Any, frame)._jdf.select(_sequence(build, arguments))
    return ClassicDataFrame(java_frame, cast(Any, frame.sparkSession))


def group(frame: DataFrame, keys: Build, key_arguments: tuple[Hashable, ...], sums: Build) -> DataFrame:
    """`frame.groupBy(*keys(*key_arguments)).agg(*sums())`."""
    grouped = cast(Any, frame)._jdf.groupBy(_sequence(keys, key_arguments))
    java_frame = grouped.agg(_java_columns(sums, ())[0], _sequence(sums, (), first=1))
    return ClassicDataFrame(java_frame, cast(Any, frame.sparkSession))


@cache
def _java_columns(build: Build, arguments: tuple[Hashable, ...]) -> list[Any]:
    return [cast(Any, column)._jc for column in build(*arguments)]


@cache
def _sequence(build: Build, arguments: tuple[Hashable, ...], first: int = 0) -> Any:
    """The columns from the `first` on, as a sequence of the JVM's."""
    jvm: Any = cast(Any, SparkContext._active_spark_context)._jvm
    return jvm.PythonUtils.toSeq(_java_columns(build, arguments)[first:])
