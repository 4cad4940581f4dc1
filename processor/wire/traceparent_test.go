package wire

import (
	"encoding/hex"
	"testing"
)

func TestParseTraceparent(t *testing.T) {
	t.Parallel()
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for value, want := range map[string]struct{ sampled, ok bool }{
		"00-" + trace + "-" + span + "-01":                        {true, true},
		"00-" + trace + "-" + span + "-00":                        {false, true},
		"00-" + trace + "-" + span + "-03":                        {true, true},
		"00-" + trace + "-" + span + "-02":                        {false, true},
		"cc-" + trace + "-" + span + "-01-more":                   {true, true},
		"cc-" + trace + "-" + span + "-01more":                    {},
		"00-" + trace + "-" + span + "-01-more":                   {},
		"ff-" + trace + "-" + span + "-01":                        {},
		"00-" + trace + "-" + span + "-1":                         {},
		"00-" + trace + "_" + span + "-01":                        {},
		"00-0AF7651916CD43DD8448EB211C80319C-" + span + "-01":     {},
		"00-00000000000000000000000000000000-" + span + "-01":     {},
		"00-" + trace + "-0000000000000000-01":                    {},
		"0-0af7651916cd43dd8448eb211c80319c0-b7ad6b7169203331-01": {},
		"": {},
	} {
		gotTrace, gotSpan, sampled, ok := ParseTraceparent([]byte(value))
		if ok != want.ok || sampled != want.sampled {
			t.Errorf("%q: sampled %v, ok %v, want %+v", value, sampled, ok, want)
		}
		if ok && (hex.EncodeToString(gotTrace[:]) != trace || hex.EncodeToString(gotSpan[:]) != span) {
			t.Errorf("%q: trace %x, span %x", value, gotTrace, gotSpan)
		}
	}
}
