"""Columns that are built, and handed to the JVM, once per process.

A Column belongs to no frame. But building one takes many calls into the JVM, and so does the list of columns that
`select` wants: a quarter of a second for all columns of a micro-batch. Built once and kept, they cost one call for
each `select`.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, cast

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

Build = Callable[..., Sequence[Column]]
"""A function of hashable arguments that returns the same columns for the same arguments."""


def select(frame: DataFrame, build: Build, *arguments: Hashable) -> DataFrame:
    """Do what `frame.select(*build(*arguments))` does, with kept columns."""
    java_frame = cast(Any, frame)._jdf.select(_sequence(build, arguments))
    return ClassicDataFrame(java_frame, cast(Any, frame.sparkSession))


def group(frame: DataFrame, keys: Build, key_arguments: tuple[Hashable, ...], sums: Build) -> DataFrame:
    """Do what `frame.groupBy(*keys(*key_arguments)).agg(*sums())` does, with kept columns."""
    grouped = cast(Any, frame)._jdf.groupBy(_sequence(keys, key_arguments))
    java_frame = grouped.agg(_java_columns(sums, ())[0], _sequence(sums, (), first=1))
    return ClassicDataFrame(java_frame, cast(Any, frame.sparkSession))


@cache
def _java_columns(build: Build, arguments: tuple[Hashable, ...]) -> list[Any]:
    return [cast(Any, column)._jc for column in build(*arguments)]


@cache
def _sequence(build: Build, arguments: tuple[Hashable, ...], first: int = 0) -> Any:
    """The columns from number `first` on, as a Scala sequence."""
    jvm: Any = cast(Any, SparkContext._active_spark_context)._jvm
    return jvm.PythonUtils.toSeq(_java_columns(build, arguments)[first:])
