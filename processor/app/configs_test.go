package app

import "testing"

// TestTimestampBounds reads the bounds on timestamps under the names of Kafka 4, of Kafka
// 3.6, which has both, and of releases before it.
func TestTimestampBounds(t *testing.T) {
	const before, difference = "message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"
	const unlimited = "9223372036854775807"
	for name, c := range map[string]struct {
		values map[string]string
		want   int64
	}{
		"no name":              {map[string]string{}, Forever},
		"Kafka 4":              {map[string]string{before: "1000"}, 1000},
		"before 3.6":           {map[string]string{difference: "2000"}, 2000},
		"both, unlimited":      {map[string]string{before: unlimited, difference: unlimited}, Forever},
		"the new one is set":   {map[string]string{before: "1000", difference: unlimited}, 1000},
		"the old one is set":   {map[string]string{before: unlimited, difference: "2000"}, 2000},
		"both set: new wins":   {map[string]string{before: "1000", difference: "2000"}, 1000},
		"the other side's set": {map[string]string{timestampAfterSetting: "1000"}, Forever},
	} {
		if got := timestampBound(c.values, before); got != c.want {
			t.Errorf("%s: bound %d, want %d", name, got, c.want)
		}
	}
}

// TestInternalMessageBytes: internal topics accept the largest record that a batch can
// decompress to.
func TestInternalMessageBytes(t *testing.T) {
	for decompressed, want := range map[int]int{
		1 << 20: 2 << 20, 3 << 20: 4 << 20, 4<<20 - EnvelopeBytesMax: 4 << 20, 4 << 20: 8 << 20, 64 << 20: 64 << 20, 1 << 30: 64 << 20,
	} {
		if got := internalMessageBytes(decompressed); got != want {
			t.Errorf("%d bytes: max.message.bytes %d, want %d", decompressed, got, want)
		}
	}
}

// TestInternalBatchesAreReadable: no batch of an internal topic decompresses to more than
// its readers accept, whatever the topic accepts. Then a process would refuse its own batch.
func TestInternalBatchesAreReadable(t *testing.T) {
	topology := &Topology{App: "app", Manifest: "app-manifest", Repartition: "app-repartition", Verdicts: "app-verdicts", Prepartitioned: []string{"keyed"}, BatchMax: 4 << 20}
	for topic, want := range map[string]TopicLimits{
		"app-repartition":           {MaxBytes: 4<<20 + EnvelopeBytesMax, BytesSetting: batchBytesSetting, ReadMax: 4<<20 + EnvelopeBytesMax},
		"app-repartition-changelog": {MaxBytes: 4 << 20, BytesSetting: batchBytesSetting, ReadMax: 4 << 20},
		"app-keyed-changelog":       {MaxBytes: 4 << 20, BytesSetting: batchBytesSetting, ReadMax: 4 << 20},
		"app-verdicts":              {MaxBytes: 4 << 20, BytesSetting: batchBytesSetting, ReadMax: 4 << 20},
		"keyed":                     {MaxBytes: 8 << 20, BytesSetting: maxMessageSetting, ReadMax: 4 << 20},
		"output":                    {MaxBytes: 8 << 20, BytesSetting: maxMessageSetting},
	} {
		want.BeforeMaxMS, want.AfterMaxMS = Forever, Forever
		if got := topology.limitsOf(topic, map[string]string{maxMessageSetting: "8388608"}); got != want {
			t.Errorf("%s: %+v, want %+v", topic, got, want)
		}
		want.MaxBytes, want.BytesSetting = 1<<20, maxMessageSetting
		if got := topology.limitsOf(topic, map[string]string{maxMessageSetting: "1048576"}); got != want {
			t.Errorf("%s with a lower limit: %+v, want %+v", topic, got, want)
		}
	}
}
