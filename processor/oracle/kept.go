package oracle

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// keptStore is a Store for JSON, in which digests have to be text.
type keptStore struct {
	Partition  int32
	Position   int64
	Checkpoint []byte
	Rows       map[string][]byte
}

// MarshalJSON writes digests in hexadecimal digits, because JSON strings cannot have arbitrary bytes.
func (s Store) MarshalJSON() ([]byte, error) {
	k := keptStore{s.Partition, s.Position, s.Checkpoint, make(map[string][]byte, len(s.Rows))}
	for d, row := range s.Rows {
		k.Rows[hex.EncodeToString([]byte(d))] = row
	}
	return json.Marshal(k)
}

// UnmarshalJSON reads what MarshalJSON has written.
func (s *Store) UnmarshalJSON(b []byte) error {
	var k keptStore
	if err := json.Unmarshal(b, &k); err != nil {
		return err
	}
	*s = Store{k.Partition, k.Position, k.Checkpoint, make(map[string][]byte, len(k.Rows))}
	for text, row := range k.Rows {
		d, err := hex.DecodeString(text)
		if err != nil {
			return fmt.Errorf("row %q of the store of partition %d: %w", text, k.Partition, err)
		}
		s.Rows[string(d)] = row
	}
	return nil
}
