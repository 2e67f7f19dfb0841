# What agents and people do with locks, messages, rows, presence and drains, as commands. test_one_script.py runs it on
# one home and on either node of a mesh. $HOCKET is the program, $TASKS a file with a handler of the kind acme.note.
set -eu
hocket() { $HOCKET "$@"; }
json() { python3 -c 'import json, sys; print(eval("told" + sys.argv[1], {"told": json.load(sys.stdin)}))' "$1"; }
is() { [ "$1" = "$2" ] || fail "'$1' is not '$2'"; }
has() { case $1 in *"$2"*) ;; *) fail "no '$2' in: $1" ;; esac }
higher() { [ "$1" -gt "$2" ] || fail "fence $1 after $2"; }
fail() { echo "$1" >&2; exit 99; }
refused() {
    code=$1 got=0; shift
    said=$(hocket "$@" 2>&1 > /dev/null) || got=$?
    is "$got" "$code"
}

# Locks.
fence=$(hocket lock acquire file:src/a.rs --agent editor --ttl 10m)
refused 3 lock acquire 'file:src/**' --agent tester
has "$said" "file:src/a.rs is held by editor on "
has "$(hocket mesh agents)" "holds file:src/a.rs until "
is "$(hocket lock renew file:src/a.rs --agent editor --fence "$fence" --json | json '["fence"]')" "$fence"
refused 3 lock renew file:src/a.rs --agent tester --fence "$fence"
refused 3 lock release file:src/a.rs --agent editor --fence $((fence + 1))
hocket lock release file:src/a.rs --agent editor --fence "$fence"
next=$(hocket lock acquire file:src/a.rs file:src/b.rs --agent tester --ttl 10m)
higher "$next" "$fence"
hocket lock acquire file:src/b.rs --agent waiter --ttl 10m --wait 10m > waiter &
waiter=$!
until hocket mesh agents | grep -q 'waits for file:src/b.rs'; do kill -0 $waiter; done
hocket lock break file:src/b.rs --reason "the tester hangs"
wait $waiter
higher "$(cat waiter)" "$next"
is "$(hocket lock run file:src/a.rs -- sh -c 'echo $HOCKET_FENCE')" $(($(cat waiter) + 1))
is "$(hocket lock list --json | json '[0]["agent"]')" waiter
hocket lock acquire read --shared --agent one
hocket lock acquire read --shared --agent two
refused 3 lock acquire read --agent three

# Messages.
first=$(hocket mail send reviewer "please read" --type review --agent editor --json | json '["id"]')
claimed=$(hocket mail inbox --agent reviewer --claim 5 --lease 10m --json)
is "$(echo "$claimed" | json '[0]["id"]')" "$first"
is "$(echo "$claimed" | json '[0]["body"]')" "please read"
has "$(hocket mesh agents)" "reads 1 message"
refused 3 ack "$first" --agent stranger
hocket mail nack "$first" --agent reviewer
is "$(hocket mail inbox --agent reviewer --claim 5 --lease 10m --json | json '[0]["tries"]')" 2
hocket mail ack "$first" --agent reviewer
refused 3 ack "$first" --agent reviewer
hocket mail send editor@here "thanks" --reply-to "$first" --agent reviewer
is "$(hocket mail thread "$first" --json | json '[1]["body"]')" thanks
hocket mail send team/ "lunch?" --agent editor
for agent in team/one team/two; do
    is "$(hocket mail inbox --agent $agent --claim 1 --json | json '[0]["body"]')" "lunch?"
done

# Contested rows.
version=$(hocket rows put memories sky '{"colour": "blue", "clouds": 0}' --agent editor --json | json '["row"]["version"]')
hocket rows put memories sky '{"colour": "grey", "clouds": 0}' --version "$version"
hocket rows put memories sky '{"colour": "blue", "clouds": 3}' --version "$version"
is "$(hocket rows get memories sky --json | json '["value"]')" "{'clouds': 3, 'colour': 'grey'}"
refused 3 rows put memories sky '{"colour": "red"}' --version "$version" --strategy manual
conflict=$(hocket rows conflicts list --open --json | json '[0]["id"]')
hocket rows conflicts resolve "$conflict" --take left --agent judge
is "$(hocket rows get memories sky --json | json '["value"]')" "{'colour': 'red'}"

# Presence, and a node that drains.
hocket mesh agents beat editor --doing "reviews src/a.rs" --every 10m
has "$(hocket mesh agents --stale 5m)" "reviews src/a.rs"
has "$(hocket mesh nodes --live --json)" '"grade":"live"'
hocket node drain here --reason "new disk"
job=$(hocket submit acme.note --json | json '["job_id"]')
hocket work "$TASKS" --until-idle
is "$(hocket show "$job" --json | json '["state"]')" pending
has "$(hocket mesh nodes --live)" "draining: new disk"
has "$(hocket status)" "draining: new disk"
hocket node resume here
hocket work "$TASKS" --until-idle
is "$(hocket show "$job" --json | json '["state"]')" succeeded

hocket log verify
hocket log rebuild
