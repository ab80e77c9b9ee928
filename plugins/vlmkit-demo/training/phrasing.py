"""The words of the questions: for each kind, phrasings for training and phrasings held out.

Only text lives here; ``question.py`` fills the braces from a scene. ``{a}`` and ``{b}`` are things
("the red circle"), ``{w}`` is a place ("on the left"), ``{x}`` something countable.
"""

from typing import NamedTuple


class Phrases(NamedTuple):
    """Phrasings of one question: for training, and held out for the evaluation."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]


LEADS = (
    "Please tell me: ", "Look at the picture. ", "Tell me, ", "Can you tell me: ", "Hello! ",
    "Look closely. ", "One question: ", "In this image, ", "Please answer: ",
)  # fmt: skip

PHRASES: dict[str, Phrases] = {
    "describe": Phrases(
        (
            "What is in this picture?", "What is in this image?", "Describe the picture.",
            "Describe this image.", "What do you see?", "What can you see in the picture?",
            "Tell me what is in the picture.", "What does the picture show?",
            "What is shown here?", "Please describe what you see.", "Describe the image in detail.",
            "What's in this picture?", "What's in the image?", "Can you describe this picture?",
            "Give me a description of the image.", "Describe everything in the picture.",
            "What do you see in this image?", "List everything you see.", "Describe the scene.",
            "What is this?", "What is this a picture of?", "Explain what the image shows.",
            "Write a caption for this picture.", "Caption this image.",
        ),
        (
            "What is in the picture?", "Please describe this picture.",
            "Can you describe the image?", "What does this image show?",
            "Tell me what you see in this picture.", "Describe what is shown in the image.",
        ),
    ),
    "at": Phrases(
        (
            "What is {w}?", "What do you see {w}?", "What is there {w}?", "What is shown {w}?",
            "Which thing is {w}?", "Describe what is {w}.", "What's {w}?", "Tell me what is {w}.",
        ),
        ("What can you see {w}?", "What is in the picture {w}?"),
    ),
    "shape": Phrases(
        (
            "What shape is {a}?", "What is the shape of {a}?", "Which shape is {a}?",
            "What kind of shape is {a}?", "Tell me the shape of {a}.", "Name the shape of {a}.",
            "What form has {a}?", "Can you tell me the shape of {a}?",
            "Please name the shape of {a}.", "Can you say what shape {a} is?",
            "Is {a} a circle, a square or what?",
        ),
        ("What shape does {a} have?", "Which kind of shape is {a}?",
         "Can you name the shape of {a}?"),
    ),
    "colour": Phrases(
        (
            "What colour is {a}?", "What color is {a}?", "What is the colour of {a}?",
            "What is the color of {a}?", "Which colour is {a}?", "Tell me the colour of {a}.",
            "Which colour does {a} have?", "Name the color of {a}.", "{a} is what colour?",
        ),
        ("Which color is {a}?", "What colour does {a} have?", "Can you tell me the color of {a}?"),
    ),
    "size": Phrases(
        (
            "How big is {a}?", "What size is {a}?", "Is {a} large or small?",
            "Is {a} small or large?", "What is the size of {a}?", "Tell me the size of {a}.",
            "Is {a} big or small?", "How large is {a}?", "Which size is {a}?",
        ),
        ("What size does {a} have?", "Is {a} small or big?", "Can you tell me the size of {a}?"),
    ),
    "position": Phrases(
        (
            "Where is {a}?", "Where is {a} in the picture?", "What is the position of {a}?",
            "In which part of the image is {a}?", "Tell me where {a} is.", "Where do you see {a}?",
            "Where can I find {a}?", "Which part of the picture shows {a}?", "Where's {a}?",
        ),
        ("Where in the image is {a}?", "Where can you see {a}?",
         "In which part of the picture is {a}?"),
    ),
    "count": Phrases(
        (
            "How many shapes are there?", "How many shapes are in the picture?",
            "How many shapes do you see?", "Count the shapes.", "What is the number of shapes?",
            "How many shapes does the image show?", "Tell me how many shapes there are.",
            "How many shapes are in this image?", "Please count all shapes.",
            "Can you count the shapes?", "How many shapes can you count?",
        ),
        ("How many shapes can you see?", "Count all the shapes in the image.",
         "How many shapes does the picture show?"),
    ),
    "count_if": Phrases(
        (
            "How many {x} are there?", "How many {x} are in the picture?",
            "How many {x} do you see?",
            "Count the {x}.", "What is the number of {x}?", "How many {x} does the image show?",
            "Tell me how many {x} there are.", "How many {x} are in this image?",
            "Please count all {x}.", "Can you count the {x}?", "How many {x} can you count?",
        ),
        ("How many {x} can you see?", "Count all the {x} in the image.",
         "How many {x} does the picture show?"),
    ),
    "relation": Phrases(
        (
            "Where is {a} relative to {b}?", "Where is {a} compared to {b}?",
            "On which side of {b} is {a}?", "Seen from {b}, where is {a}?",
            "How is {a} placed relative to {b}?", "What is the position of {a} relative to {b}?",
        ),
        ("Where is {a} placed compared to {b}?", "Tell me where {a} is relative to {b}."),
    ),
    "relation_check": Phrases(
        (
            "Is {a} {r} {b}?", "Is it true that {a} is {r} {b}?", "Do you see {a} {r} {b}?",
            "Can you see that {a} is {r} {b}?", "Tell me if {a} is {r} {b}.",
            "Yes or no: do you see {a} {r} {b}?", "Please check: is {a} {r} {b}?",
            "Would you say {a} is {r} {b}?", "{a} is {r} {b}, yes or no?",
            "Is {b} with {a} {r} it?",
        ),
        ("Can you see {a} {r} {b}?", "Yes or no: is {a} {r} {b}?", "Tell me, is {a} {r} {b}?"),
    ),
    "exist": Phrases(
        (
            "Is there {x}?", "Is there {x} in the picture?", "Do you see {x}?",
            "Does the image show {x}?", "Can you see {x} in the image?", "Is {x} in the picture?",
            "Does the picture have {x}?", "Do you see {x} here?", "Is {x} shown here?",
            "Yes or no: is there {x}?", "Tell me if you see {x}.", "Can you see {x} here?",
            "Do you see {x} in this picture?", "Is there {x} here?", "Does this image have {x}?",
        ),
        ("Can you see {x}?", "Is there {x} in this image?", "Does this picture show {x}?"),
    ),
    "digit": Phrases(
        (
            "What digit is shown?", "Which digit is in the picture?", "What number is it?",
            "What number do you see?", "Which number is shown?", "Read the digit.",
            "What is the digit?", "Which digit do you see?", "Tell me the number in the image.",
            "What digit is this?", "Which number can you see?", "What digit can you read?",
            "Can you read the digit?", "Please read the number.", "What digit do you see here?",
        ),
        ("What number is shown in the picture?", "Which digit can you see?",
         "Read the number in the image."),
    ),
    "word": Phrases(
        (
            "What does it say?", "What word is written?", "Read the word.", "What is the word?",
            "Which word do you see?", "What text is in the picture?", "Read the text.",
            "What is written in the image?", "Which word is shown?", "What does the text say?",
            "Tell me the word in the picture.", "Transcribe the text.", "Can you read the word?",
            "Please read the text.", "What word do you see?", "Which word can you read here?",
        ),
        ("What word is in the image?", "What is written here?", "Read the text in the picture.",
         "What does the word say?"),
    ),
}  # fmt: skip

SMALL_TALK: tuple[tuple[Phrases, str], ...] = (
    (
        Phrases(
            (
                "Hello!",
                "Hi!",
                "Hello",
                "hi",
                "Hey!",
                "Good morning!",
                "Hello there!",
                "Hi there!",
                "Good evening!",
                "Greetings!",
                "Hey there",
                "Hello, model!",
                "Good day!",
            ),
            ("Hi, model!", "Hey, hello!", "Good morning, hello!"),
        ),
        "Hello! Show me a picture and ask me about it.",
    ),
    (
        Phrases(
            (
                "Who are you?",
                "What are you?",
                "What is your name?",
                "Tell me about yourself.",
                "Introduce yourself.",
                "Which model are you?",
                "Who am I talking to?",
                "Please tell me who you are.",
                "What model is this?",
                "What's your name?",
            ),
            ("Can you tell me who you are?", "Please introduce yourself.", "What model are you?"),
        ),
        "I am the vlmkit demo, a small model that looks at pictures.",
    ),
    (
        Phrases(
            (
                "What can you do?",
                "How can you help me?",
                "Help",
                "What can I ask you?",
                "Help me!",
                "What are you able to do?",
                "What do you know?",
                "What are your skills?",
                "What can you see?",
                "What should I ask you?",
                "What do you do?",
            ),
            ("Tell me what you can do.", "What can I ask?", "How can you help?"),
        ),
        "I can tell you about shapes, colours, sizes, places, digits and short words.",
    ),
    (
        Phrases(
            (
                "Thank you!",
                "Thanks!",
                "Thank you very much.",
                "Thanks a lot!",
                "Great, thanks!",
                "Fine, thank you!",
                "Good, thank you!",
                "Great!",
                "Very good, thank you!",
                "Great work, thanks!",
                "Thanks for your help.",
                "Many thanks!",
                "Thank you for the answer.",
                "thanks",
            ),
            ("Great, thank you!", "Thank you for your help.", "Thank you a lot!"),
        ),
        "You are welcome!",
    ),
    (
        Phrases(
            (
                "How are you?",
                "How are you today?",
                "Are you well?",
                "How do you feel?",
                "How is it going?",
                "Are you fine?",
                "Hello, how are you?",
            ),
            ("Hi, how are you?", "How do you feel today?", "How are you, model?"),
        ),
        "I am fine, thank you.",
    ),
    (
        Phrases(
            (
                "Goodbye!",
                "Bye!",
                "See you later!",
                "Good night!",
                "See you!",
                "Bye bye!",
                "Goodbye, model!",
                "Until next time!",
                "I have to go.",
            ),
            ("Goodbye and good night!", "Bye, see you later!", "Bye, model!"),
        ),
        "Goodbye!",
    ),
    (
        Phrases(
            (
                "Who made you?",
                "Who trained you?",
                "Who built you?",
                "Where do you come from?",
                "Who created you?",
                "How were you made?",
                "How were you trained?",
                "Tell me who made you.",
                "Who were you trained by?",
                "Who were you built by?",
                "Were you made by a human?",
                "Who is your maker?",
            ),
            ("Tell me who trained you.", "Can you tell me who made you?", "Who were you made by?"),
        ),
        "I was trained for vlmkit on pictures that a program drew.",
    ),
    (
        Phrases(
            (
                "Are you human?",
                "Are you a person?",
                "Are you a real person?",
                "Are you a robot?",
                "Are you an AI?",
                "Am I talking to a human?",
                "Are you alive?",
                "Am I talking to a machine?",
                "Am I speaking with a person?",
                "Is this a person?",
                "Is this a human?",
            ),
            ("Are you a human person?", "Am I talking to a person?", "Are you a real human?"),
        ),
        "No person, only a very small model.",
    ),
)

DONT_KNOW = "I don't know."
NO_PICTURE = "I don't see a picture."
NOT_THERE = "I don't see that."

UNKNOWABLE = Phrases(
    (
        "Who is the person in the picture?", "What is the weather like?", "Who drew this picture?",
        "Where was this picture taken?", "When was this picture made?", "How old is the man?",
        "What is the name of the woman?", "What is the dog doing?", "Why is the car here?",
        "Is the man happy?", "What time is it?", "What day is it today?", "How much does it cost?",
        "What will happen next?", "Who is the artist?", "What is the capital of France?",
        "Who won the game?", "Tell me a joke.", "Write a poem.", "Sing a song.",
        "What is the meaning of life?", "How tall is the tower?", "Translate this to French.",
        "What is the price of bread?", "Who is the president?", "Which animal do you see?",
        "What food is on the table?", "What is the cat eating?", "How many people are there?",
        "How many dogs are in the picture?", "What is the boy holding?", "Which city is this?",
        "What brand is the car?", "What is the girl wearing?", "Where are the people going?",
        "What is two plus two?", "Write a program.", "What is the population of Rome?",
        "Is it raining?", "Is it day or night?", "What season is it?", "Who wrote the book?",
        "How many trees are there?", "How many men do you see?", "Which town is this?",
        "Which street is this?",
        "Which language is this?", "Where was this photo taken?", "Where was it made?",
        "Where was this shirt made?", "When was it taken?", "Which person is this?",
        "How many books are there?",
        "How many children can you see?", "Count the birds.", "How many cars do you see?",
        "What is the child doing?", "Who is the man?", "What is the price?", "Where is the dog?",
        "What is the capital of Spain?", "Who won the race?", "Where do the people live?",
        "When was the house built?", "What is the name of the city?", "How old are the children?",
        "How far is the moon?", "What music do you like?", "Why is the sky blue?",
    ),
    (
        "Who is the woman in the picture?", "What is the man doing?", "What is the weather today?",
        "How old is the woman?", "What is the capital of Rome?", "When was this picture taken?",
        "How many cats are in the picture?", "What is the name of the dog?",
        "Who won the war?", "What is the boy eating?", "How much does the car cost?",
        "Where was this picture made?", "Is it raining today?", "Write a song.",
        "What is the girl doing?", "Which country is this?",
    ),
)  # fmt: skip

FOLLOW: dict[str, Phrases] = {
    "colour": Phrases(
        ("What colour is it?", "And what color is it?", "Which colour does it have?",
         "And its colour?", "And the colour?", "What is its color?"),
        ("And what colour is it?", "What is its colour?", "And the color?"),
    ),
    "size": Phrases(
        ("How big is it?", "Is it large or small?", "What size is it?", "And its size?",
         "And how large is it?", "And the size?"),
        ("And how big is it?", "What is its size?", "And what size is it?"),
    ),
    "shape": Phrases(
        ("What shape is it?", "And its shape?", "Which shape is it?", "And what is its shape?",
         "And the shape?"),
        ("And what shape is it?", "What is its shape?", "And which shape is it?"),
    ),
    "position": Phrases(
        ("Where is it?", "And where is it?", "What is its position?", "And its position?",
         "Where do you see it?", "Where is it in the picture?", "Where is it in the image?",
         "Where can you see it?", "And where in the picture?"),
        ("And where do you see it?", "Where in the picture is it?",
         "And where is it in the image?"),
    ),
}  # fmt: skip

SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful vision assistant.", "Answer briefly.",
    "You answer questions about pictures.", "Be short and exact.",
    "You are the vlmkit demo model.", "You are a friendly assistant. Look at the picture.",
)  # fmt: skip

PAIR: dict[str, Phrases] = {
    "which": Phrases(
        ("Which picture has {x}?", "Which image shows {x}?", "In which picture do you see {x}?",
         "Which one has {x}?", "Where is {x}, in the first or the second picture?",
         "{x} is in which picture?", "Is {x} in the first or the second image?"),
        ("Which picture shows {x}?", "In which image do you see {x}?",
         "Which of the two pictures has {x}?"),
    ),
    "more": Phrases(
        ("Which picture has more shapes?", "Which image shows more shapes?",
         "In which picture are there more shapes?", "Where are more shapes?",
         "Which one has more shapes?", "Which of the pictures has more shapes?"),
        ("Which picture shows more shapes?", "In which image are there more shapes?",
         "Which of the two images has more shapes?"),
    ),
    "both": Phrases(
        ("Is there {x} in both pictures?", "Do both pictures show {x}?", "Do both images have {x}?",
         "Is {x} in both images?", "Do the two pictures both have {x}?",
         "Do you see {x} in both pictures?"),
        ("Do both pictures have {x}?", "Is there {x} in both images?",
         "Do you see {x} in both images?"),
    ),
    "describe": Phrases(
        ("What is in {p}?", "Describe {p}.", "What do you see in {p}?", "What does {p} show?",
         "Please describe {p}.", "Tell me what is in {p}.", "What is shown in {p}?",
         "Tell me what {p} shows.", "Describe what is in {p}.", "Describe what you see in {p}.",
         "What do you see in {p}, please?", "Please describe what is in {p}."),
        ("What can you see in {p}?", "Can you describe {p}?", "Describe what {p} shows."),
    ),
}  # fmt: skip
