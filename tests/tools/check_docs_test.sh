#!/usr/bin/env bash
# tools/check_docs PROGRAM_FOLDER on documents of its own: what it runs, and what it refuses.
set -euo pipefail

check_docs=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tools/check_docs
program=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# expect CODE TEXT ARGUMENT...: the exit code and a part of what check_docs says of the document on
# standard input.
expect() {
  local code=0
  cat > document.md
  "$check_docs" "${@:3}" document.md > out 2>&1 || code=$?
  if [[ $code != "$1" ]] || ! grep -qF -- "$2" out; then
    echo "check_docs ${*:3}: exit code $code, expected $1 and \"$2\"; it said:"
    cat out
    exit 1
  fi
  if [[ -e ran ]]; then
    echo "check_docs ${*:3}: ran what it should not"
    exit 1
  fi
}

expect 0 "document.md:3: run" --list << END

~
\`\`\`sh
touch $scratch/ran
\`\`\`
END
expect 0 "document.md:1: not run: needs a GPU" --program "$program" << END
\`\`\`sh not run: needs a GPU
touch $scratch/ran
\`\`\`
END
expect 0 "document.md:7: run" --program "$program" << 'END'
```sh
name=b.json
```
```json b.json
{"seed": 3}
```
```sh
grep 3 "$name" | cat > /dev/null
```
END
expect 1 'document.md:1: exit code 2 of: vcas-train --no-such-option' --program "$program" << 'END'
```sh
vcas-train --no-such-option
touch not_reached
```
END
expect 1 "document.md:2: a block without a fence" --list << 'END'

    ls
END
expect 1 'document.md:1: after sh may stand "not run: " and why' --list << 'END'
```sh later
```
END
expect 1 "document.md:1: a fence without a language" --list << 'END'
```
```
END
expect 1 "document.md:2: a block without an end" --list << 'END'
```sh
ls
END
echo passed
