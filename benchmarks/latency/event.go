//go:build unix

package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// An event is a signal of about 250 bytes. Its traceId, which is also the record key,
// is its dedup key. Its seq is its number in the schedule, by which the consumer
// finds its due time, even if a contender drops headers. Both numbers have a fixed
// width, so that the consumer reads them without parsing.
const (
	traceHead = `{"traceId":"`
	seqHead   = `","seq":"`
	eventTail = `","symbol":"BTCUSDT","exchange":"BINANCE","action":"buy","price":"40000.25","quantity":"0.50","strategy":"breakout-v3","interval":"15m","timestamp":"2026-11-20T10:00:00Z","comment":"long entry on close above band"}`
	digits    = 12
	traceLen  = len("trace-") + digits
	seqAt     = len(traceHead) + traceLen + len(seqHead)
)

// template is an event with both numbers 0.
var template = fmt.Appendf(nil, "%strace-%0*d%s%0*d%s", traceHead, digits, 0, seqHead, digits, 0, eventTail)

// newEvent returns the record of event n, which is event first or its duplicate.
func newEvent(n, first int, timestamp time.Time) *kgo.Record {
	value := bytes.Clone(template)
	key := value[len(traceHead) : len(traceHead)+traceLen]
	putNumber(key[traceLen-digits:], first)
	putNumber(value[seqAt:seqAt+digits], n)
	return &kgo.Record{Key: key, Value: value, Timestamp: timestamp}
}

// putNumber fills to with the digits of n.
func putNumber(to []byte, n int) {
	for i := range slices.Backward(to) {
		to[i] = byte('0' + n%10)
		n /= 10
	}
}

// eventNumber returns the number of a received event, -1 if it is foreign.
func eventNumber(value []byte) int {
	if len(value) < seqAt+digits || !bytes.HasPrefix(value, []byte(traceHead)) || string(value[seqAt-len(seqHead):seqAt]) != seqHead {
		return -1
	}
	n, err := strconv.Atoi(string(value[seqAt : seqAt+digits]))
	if err != nil {
		return -1
	}
	return n
}
