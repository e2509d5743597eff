#!/bin/sh
# Writes the secrets that compose.yaml mounts into docker/secrets, or into the folder given. Passwords that are there
# are kept; to change one, delete its file and run this again. The folder is yours alone; the files in it are readable
# for all, because a container's user, which is none of the host's, must read them.
set -eu
umask 077
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
chmod 700 "$folder"
cd "$folder"

password() {
    LC_ALL=C tr -dc 'A-Za-z0-9' < /dev/urandom | head -c 40
}

sha256() {
    if command -v sha256sum > /dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

write() {
    cat > "$1.new"
    chmod 444 "$1.new"
    mv -f "$1.new" "$1"
}

[ -s redis_password ] || password | write redis_password
[ -s osrerank_signing_key ] || password | write osrerank_signing_key
[ -s osrerank_server_token ] || password | write osrerank_server_token
# OpenSearch wants capitals, small letters, digits and another character.
[ -s opensearch_admin_password ] || printf 'Aa1-%s' "$(password)" | write opensearch_admin_password

# Who does not log in may only ask whether Redis is there. Who does may not reconfigure it, list or drop all its keys.
write redis_users << USERS
user default on nopass resetkeys resetchannels -@all +ping
user osrerank on #$(tr -d '\n' < redis_password | sha256) ~* &* +@all -@admin -@dangerous +info
USERS
printf 'redis://osrerank:%s@redis:6379/0' "$(cat redis_password)" | write osrerank_redis_url
