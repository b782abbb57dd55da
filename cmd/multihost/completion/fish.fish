# Completion of multihost for fish. Use it now:
#   multihost completion fish | source
# and in every shell:
#   multihost completion fish >~/.config/fish/completions/multihost.fish
function __multihost_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l answer ($words[1] __complete fish $words[2..-1] "$current" 2>/dev/null)
    set -l kind $answer[1]
    if test "$kind" = files -o "$kind" = dirs
        set -l prefix (string match -r -- '^--[^=]*=' $current)
        set -l path (string replace -r -- '^--[^=]*=' '' $current)
        for file in (__fish_complete_path "$path")
            echo "$prefix$file"
        end
        return
    end
    for line in $answer[2..-1]
        echo $line
    end
end
complete -c multihost -f -a '(__multihost_complete)'
