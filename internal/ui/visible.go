package ui

import (
	"encoding/binary"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// appendVisible appends one line. Bytes that could act on a terminal get a visible form:
// caret notation for control characters (^[ for ESC), text like \u009b for C1 and direction
// controls, U+FFFD for bytes that are not UTF-8. Tabs stay.
func appendVisible(dst, line []byte) []byte {
	for len(line) > 0 {
		n := plainPrefix(line)
		dst = append(dst, line[:n]...)
		line = line[n:]
		if len(line) == 0 {
			return dst
		}
		c := line[0]
		switch {
		case c < 0x20:
			dst = append(dst, '^', c+'@')
			line = line[1:]
			continue
		case c == 0x7f:
			dst = append(dst, '^', '?')
			line = line[1:]
			continue
		}
		r, size := utf8.DecodeRune(line)
		switch {
		case r == utf8.RuneError && size <= 1:
			dst = append(dst, "\uFFFD"...)
		case actsOnTerminal(r):
			dst = fmt.Appendf(dst, "\\u%04x", r)
		default:
			dst = append(dst, line[:size]...)
		}
		line = line[size:]
	}
	return dst
}

// plainPrefix counts the leading bytes that are printable ASCII or tabs. It checks eight
// bytes at a time, because every byte of output comes here.
func plainPrefix(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; len(b)-i >= 8; i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		del := x ^ 0x7f*ones
		// The top bit of a byte in odd is set if the byte is above 0x7f, below 0x20, or
		// DEL.
		if odd := (x | (x-0x20*ones)&^x | (del-ones)&^del) & tops; odd == 0 {
			continue
		}
		if n := plainBytes(b[i : i+8]); n < 8 {
			return i + n
		}
	}
	return i + plainBytes(b[i:])
}

func plainBytes(b []byte) int {
	for i, c := range b {
		if (c < 0x20 && c != '\t') || c >= 0x7f {
			return i
		}
	}
	return len(b)
}

// actsOnTerminal reports whether r is a C1 control, which some terminals obey like an
// escape sequence, or a direction mark, which makes text read as something else.
func actsOnTerminal(r rune) bool {
	switch {
	case r >= 0x80 && r < 0xa0:
		return true
	case r == 0x2028, r == 0x2029, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c:
		return true
	}
	return false
}

// appendVisibleText is appendVisible for text of several lines.
func appendVisibleText(dst []byte, text string) []byte {
	for {
		i := 0
		for i < len(text) && text[i] != '\n' {
			i++
		}
		dst = appendVisible(dst, []byte(text[:i]))
		if i == len(text) {
			return dst
		}
		dst = append(dst, '\n')
		text = text[i+1:]
	}
}

// runeWidth returns how many columns a printable rune needs. It knows the runes of names
// and messages. If a terminal treats a rare symbol differently, one line is too short.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x1100 && r <= 0x115f, // Hangul Jamo
		r >= 0x2e80 && r <= 0x303e, r >= 0x3041 && r <= 0x33ff, // CJK, Kana
		r >= 0x3400 && r <= 0x4dbf, r >= 0x4e00 && r <= 0x9fff,
		r >= 0xa000 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3,
		r >= 0xf900 && r <= 0xfaff, r >= 0xfe30 && r <= 0xfe6f,
		r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6,
		r >= 0x1f300 && r <= 0x1f64f, r >= 0x1f680 && r <= 0x1f6ff, r >= 0x1f900 && r <= 0x1faff, // pictographs
		r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// cutToWidth returns s if it needs at most width columns, otherwise its beginning with an
// ellipsis. Tabs become spaces, because the width of a tab depends on its place.
func cutToWidth(s string, width int) string {
	if width <= 0 {
		return ""
	}
	var out []rune
	used, room := 0, -1
	for _, r := range s {
		if r == '\t' {
			r = ' '
		}
		w := runeWidth(r)
		if used+w > width-1 && room < 0 {
			room = len(out)
		}
		if used+w > width {
			return string(out[:room]) + "…"
		}
		used += w
		out = append(out, r)
	}
	return string(out)
}

// cutInside is cutToWidth for a line whose end matters most, such as a file with a line
// number. It cuts in the middle: three quarters of the result are the end.
func cutInside(s string, width int) string {
	head := cutToWidth(s, width/4)
	if head == s || cutToWidth(s, width) == s {
		return s
	}
	room, end := width-textWidth(head), len(s)
	for end > 0 {
		r, size := utf8.DecodeLastRuneInString(s[:end])
		if room -= runeWidth(r); room < 0 {
			break
		}
		end -= size
	}
	return head + s[end:]
}
