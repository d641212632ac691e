#!/usr/bin/env bash
# pyspark 4.2.0, pyspark-client 4.1.1 (required by Airflow's Spark provider) and pip 23.2.1: both packages install into
# the folder `pyspark`. pip writes one over the other without a warning, and `pip check` finds nothing wrong. Python
# code of 4.1.1 then drives jars of 4.2.0, beside modules that only 4.2.0 has. Uninstalling pyspark-client removes the
# files that both have: pip still lists pyspark, and `import pyspark` works, as a module without a version or a class.
#
# Seen: "installed: pyspark 4.2.0, imported: 4.1.1, jars: 4.2.0", "after uninstalling pyspark-client: pyspark 4.2.0,
# imported: nothing", and after each of the two "No broken requirements found."
# Fails if other versions are installed, or if one of these changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" --disable-pip-version-check)
"${pip[@]}" install --quiet pip==23.2.1
"${pip[@]}" install --quiet pyspark==4.2.0 pyspark-client==4.1.1
cat > "$folder/versions.py" <<'PYTHON'
import importlib.metadata
import pathlib

import pyspark

(folder,) = pyspark.__path__
jars = [path.stem.rpartition("-")[2] for path in pathlib.Path(folder, "jars").glob("spark-core_*.jar")]
print(importlib.metadata.version("pyspark"), getattr(pyspark, "__version__", "nothing"), *jars)
PYTHON
read -r installed imported jars < <("$folder/venv/bin/python" "$folder/versions.py")
echo "installed: pyspark $installed, imported: $imported, jars: $jars"
"${pip[@]}" check
"${pip[@]}" uninstall --quiet --yes pyspark-client
read -r left nothing jars_left < <("$folder/venv/bin/python" "$folder/versions.py")
echo "after uninstalling pyspark-client: pyspark $left, imported: $nothing"
"${pip[@]}" check
[[ "$installed $imported $jars $left $nothing $jars_left" == "4.2.0 4.1.1 4.2.0 4.2.0 nothing 4.2.0" ]]
