package winch

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

const (
	firstPause    = 100 * time.Millisecond
	greatestPause = 5 * time.Second
)

// backoff draws each pause from the whole range up to a bound that doubles, so that many clients do not
// come back at the same moment.
type backoff struct{ bound time.Duration }

func (b *backoff) next() time.Duration {
	if b.bound == 0 {
		b.bound = firstPause
	}
	pause := time.Duration(random() % uint64(b.bound))
	if b.bound *= 2; b.bound > greatestPause {
		b.bound = greatestPause
	}
	return pause
}

func (b *backoff) reset() { b.bound = 0 }

func random() uint64 {
	var bytes [8]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err) // the system has no randomness
	}
	return binary.BigEndian.Uint64(bytes[:])
}

// newID draws a UUID of version 4.
func newID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err)
	}
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// sleep waits; false as soon as the context is over.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
