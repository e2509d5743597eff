"""Write variables as a TensorFlow 1 checkpoint, with the real TensorFlow: run by a Python that has it.

python tests/write_tensorflow.py VARIABLES.npz FOLDER/model.ckpt-N
"""

import sys

import numpy as np
import tensorflow as tf


def main() -> None:
    """Write the variables, and such as an optimiser leaves beside them."""
    arrays = np.load(sys.argv[1])
    with tf.Graph().as_default():
        for name in arrays.files:
            made = tf.compat.v1.get_variable(name.replace("__", "/"), initializer=arrays[name])
            if name.endswith("query__kernel"):
                for moment in ("adam_m", "adam_v"):
                    tf.compat.v1.get_variable(f"{made.op.name}/{moment}", initializer=np.zeros_like(arrays[name]))
        tf.compat.v1.get_variable("global_step", initializer=np.int64(7))
        saver = tf.compat.v1.train.Saver()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            saver.save(session, sys.argv[2], write_meta_graph=False)


if __name__ == "__main__":
    main()
