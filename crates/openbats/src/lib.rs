//! openbats
