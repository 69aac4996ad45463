# The state of a work tree as a git tree object, and its patch against the first state. Run by bash in the sandbox.
# Usage: snapshot.sh HOME MODE [FIRST LAST LARGEST_BYTES]; the current folder is the work tree.
# All git data of ours is in HOME, outside the tree: what the agent does to the tree's own .git changes nothing here.
# Run after each command of the agent, so every process that is not started counts.
set -eu
home=$1 mode=$2 first=${3:-} last=${4:-} largest=${5:-0}
export GIT_DIR=$home/git GIT_WORK_TREE=$PWD GIT_INDEX_FILE=$home/index
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 LC_ALL=C
unset GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_CONFIG_PARAMETERS GIT_CONFIG_COUNT 2>/dev/null || :

if [ "$mode" = first ]; then
    env -u GIT_WORK_TREE -u GIT_DIR git init -q --bare --template= "$GIT_DIR"
    cat >"$GIT_DIR/config" <<'CONFIG'
[core]
	repositoryformatversion = 0
	bare = false
	fileMode = true
	symlinks = true
	autocrlf = false
	safecrlf = false
	quotePath = false
	fsmonitor = false
	untrackedCache = false
[gc]
	auto = 0
CONFIG
    # Bytes exact: no attribute of the tree may convert what is read from it.
    mkdir -p "$GIT_DIR/info"
    printf '* -text -ident -filter -working-tree-encoding\n' >"$GIT_DIR/info/attributes"
    cp "$home/exclude" "$GIT_DIR/info/exclude"
    # What the base commit holds is tracked even where an ignore rule would match it.
    if [ -d .git ]; then
        ( unset GIT_DIR GIT_INDEX_FILE GIT_WORK_TREE
          git -c safe.directory='*' ls-files -z ) >"$home/tracked" 2>/dev/null || :
        git --literal-pathspecs add -f --ignore-errors --pathspec-from-file="$home/tracked" --pathspec-file-nul \
            2>/dev/null || :
        rm -f "$home/tracked"
    fi
elif [ -e "$GIT_INDEX_FILE.lock" ]; then
    rm -f "$GIT_INDEX_FILE.lock"
fi

# Repositories inside the tree are taken as plain folders: a link to a commit that nobody has is no patch.
# New files that no patch should carry (too large, or a link to somewhere outside) are named and left out.
nested=()
set -- .
while IFS= read -r -d '' found; do
    path=${found#?}
    case $found in
    N*) nested+=("${path%/.git}") && set -- "$@" ":(top,exclude,literal)${path%/.git}" && continue ;;
    L*)
        kind=outside target=$(readlink -- "$path")
        case $target in
        /*) ;;
        *) case $(realpath -ms -- "$(dirname -- "./$path")/$target") in "$PWD" | "$PWD"/*) continue ;; esac ;;
        esac
        ;;
    *) kind=large ;;
    esac
    if [ "$mode" != first ] && ! git cat-file -e "$first:$path" 2>/dev/null; then
        set -- "$@" ":(top,exclude,literal)$path"
        git check-ignore -q -- "$path" 2>/dev/null || printf '%s %s\0' "$kind" "$path"
    fi
done < <(find . -path ./.git -prune -o -name .git -prune -printf 'N%P\0' -o -type l -printf 'L%P\0' \
    -o -type f -size "+${largest}c" -printf 'F%P\0' 2>/dev/null)
git add -A --ignore-errors -- "$@" 2>"$home/warnings" || printf 'unread %s\0' "$(tail -n 3 "$home/warnings")"
if [ ${#nested[@]} -gt 0 ]; then
    # Outer ones first: taking an outer one anew forgets what was taken of those inside it.
    mapfile -d '' -t nested < <(printf '%s\0' "${nested[@]}" | sort -z)
    for folder in "${nested[@]}"; do
        set -- .
        for other in "${nested[@]}"; do
            case $other in "$folder"/*) set -- "$@" ":(top,exclude,literal)${other#"$folder"/}" ;; esac
        done
        git --literal-pathspecs rm -r -q --cached --ignore-unmatch -- "$folder" >/dev/null 2>&1 || :
        rm -f "$home/inner"
        ( cd "$folder"
          export GIT_WORK_TREE=$PWD GIT_INDEX_FILE=$home/inner
          git add -A --ignore-errors -- "$@" 2>/dev/null || :
          git ls-files -s -z ) | while IFS= read -r -d '' line; do
            case $line in 160000*) continue ;; esac
            printf '%s\t%s/%s\0' "${line%%$'\t'*}" "$folder" "${line#*$'\t'}"
        done | git update-index -z --index-info
    done
fi

tree=$(git write-tree)
printf 'tree %s\0' "$tree"
if [ "$mode" != first ] && [ "$tree" != "$last" ] && [ "$tree" != "$first" ]; then
    git diff --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv --diff-algorithm=myers \
        --src-prefix=a/ --dst-prefix=b/ "$first" "$tree" >"$home/patch"
fi
if [ "$mode" = final ]; then
    git ls-files -z -o -i --exclude-standard --directory 2>/dev/null | head -c 20000 | while IFS= read -r -d '' name; do
        printf 'ignored %s\0' "$name"
    done
fi
