package worker

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Opcodes of terminal modes in a pty-req (RFC 4254, section 8, and RFC 8160).
var (
	modeChars = map[byte]int{
		1: unix.VINTR, 2: unix.VQUIT, 3: unix.VERASE, 4: unix.VKILL, 5: unix.VEOF, 6: unix.VEOL, 7: unix.VEOL2, 8: unix.VSTART, 9: unix.VSTOP,
		10: unix.VSUSP, 12: unix.VREPRINT, 13: unix.VWERASE, 14: unix.VLNEXT, 16: unix.VSWTC, 18: unix.VDISCARD,
	}
	modeInput = map[byte]uint32{
		30: unix.IGNPAR, 31: unix.PARMRK, 32: unix.INPCK, 33: unix.ISTRIP, 34: unix.INLCR, 35: unix.IGNCR, 36: unix.ICRNL, 37: unix.IUCLC,
		38: unix.IXON, 39: unix.IXANY, 40: unix.IXOFF, 41: unix.IMAXBEL, 42: unix.IUTF8,
	}
	modeLocal = map[byte]uint32{
		50: unix.ISIG, 51: unix.ICANON, 52: unix.XCASE, 53: unix.ECHO, 54: unix.ECHOE, 55: unix.ECHOK, 56: unix.ECHONL, 57: unix.NOFLSH,
		58: unix.TOSTOP, 59: unix.IEXTEN, 60: unix.ECHOCTL, 61: unix.ECHOKE, 62: unix.PENDIN,
	}
	modeOutput = map[byte]uint32{
		70: unix.OPOST, 71: unix.OLCUC, 72: unix.ONLCR, 73: unix.OCRNL, 74: unix.ONOCR, 75: unix.ONLRET,
	}
)

const (
	modesEnd     = 0
	modesUnknown = 160 // nobody knows the length of the arguments from this opcode on
	noChar       = 255
)

// setModes gives a terminal the modes of the client's terminal, except speed and character
// size, which have no meaning here.
func setModes(fd int, modes []byte) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("read modes: %w", err)
	}
	for len(modes) >= 5 && modes[0] != modesEnd && modes[0] < modesUnknown {
		opcode, value := modes[0], binary.BigEndian.Uint32(modes[1:])
		modes = modes[5:]
		if i, ok := modeChars[opcode]; ok {
			t.Cc[i] = byte(value)
			if value == noChar {
				t.Cc[i] = 0
			}
		}
		for _, word := range []struct {
			bits *uint32
			of   map[byte]uint32
		}{{&t.Iflag, modeInput}, {&t.Lflag, modeLocal}, {&t.Oflag, modeOutput}} {
			*word.bits &^= word.of[opcode]
			if value != 0 {
				*word.bits |= word.of[opcode]
			}
		}
	}
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return fmt.Errorf("set modes: %w", err)
	}
	return nil
}
